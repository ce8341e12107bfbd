// Built-in plans: what they make of AlexNet, worked out by hand, and that they are legal.
#include "catch.hpp"

#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/plan.hpp>

#include <map>

using namespace lamina;

namespace {

struct Planned {
  std::map<std::string, Decision> layers;
  std::size_t fallbacks = 0;

  Planned(std::string_view plan, const Network& net, std::int64_t batch, int ranks) {
    for (const Decision& d : decide(built_in_plan(plan, net, batch, ranks), net, batch)) {
      layers[d.layer] = d;
      fallbacks += !d.reason.empty();
      CHECK((d.requested == d.used) == d.reason.empty());
    }
  }
  Split operator[](const std::string& layer) const { return layers.at(layer).used; }
};

}  // namespace

TEST_CASE("the plan data splits all layers by samples") {
  const Network net = alexnet();
  CHECK(built_in_plan("data", net, 8, 4).rules.empty());
  const Planned p("data", net, 8, 4);
  for (const auto& [name, d] : p.layers) CHECK(d.used == Split{.batch = 4});
}

TEST_CASE("the plan owt splits AlexNet's classifier by channels") {
  const Network net = alexnet();
  for (const int ranks : {2, 4}) {
    const Planned p("owt", net, 8, ranks);
    const Split data{.batch = ranks}, channel{.channel = ranks}, input{.input = ranks};
    for (int i = 0; i <= 12; ++i) CHECK(p[text("features.", i)] == data);
    CHECK(p["avgpool"] == data);
    CHECK(p["classifier.0"] == data);  // dropout, before the first Linear
    CHECK(p["classifier.1"] == channel);
    CHECK(p["classifier.2"] == channel);
    CHECK(p["classifier.3"] == channel);
    CHECK(p["classifier.4"] == input);  // its input lies in parts already
    CHECK(p["classifier.5"] == channel);
    CHECK(p["classifier.6"] == input);
    CHECK(p["loss"] == channel);
    CHECK(p.fallbacks == 0);
  }
}

TEST_CASE("with nothing between them, linear layers alternate") {
  Network net({.c = 64, .h = 1, .w = 1});
  for (const char* name : {"a", "b", "c", "d"}) net.add<Linear>({.features = 32}, name);
  const Planned p("owt", net, 8, 4);
  const Split channel{.channel = 4}, input{.input = 4};
  CHECK(p["a"] == channel);
  CHECK(p["b"] == input);  // and its sum is whole on all ranks
  CHECK(p["c"] == channel);
  CHECK(p["d"] == input);
}

TEST_CASE("a convolution behind a linear layer is a convolution again") {
  Network net({.c = 16, .h = 1, .w = 1});
  net.add<Linear>({.features = 16}, "fc");
  net.add<ReLU>({}, "relu1");
  net.add<Conv2D>({.channels = 8}, "conv");
  net.add<ReLU>({}, "relu2");
  const Planned p("owt", net, 8, 2);
  CHECK(p["relu1"] == Split{.channel = 2});
  CHECK(p["conv"] == Split{.batch = 2});
  CHECK(p["relu2"] == Split{.batch = 2});
}

TEST_CASE("the plan spatial splits rows, as far as there are any") {
  const Network net = alexnet();
  for (const int ranks : {2, 4}) {
    const Planned p("spatial", net, 8, ranks);
    for (int i = 0; i <= 12; ++i) CHECK(p[text("features.", i)] == Split{.height = ranks});
    for (const char* name : {"classifier.1", "classifier.2", "classifier.6", "loss"})
      CHECK(p[name] == Split{.batch = ranks});
    CHECK(p.fallbacks == 0);
  }
  const Planned p("spatial", net, 8, 8);  // the last pooling leaves 6 rows
  CHECK(p["features.11"] == Split{.height = 8});
  CHECK(p["features.12"] == Split{.batch = 2, .height = 4});
  const Decision& d = p.layers.at("features.12");
  CHECK(d.requested == Split{.height = 8});
  CHECK_THAT(d.reason, ContainsSubstring("height:8") && ContainsSubstring("only 6 rows"));
}

TEST_CASE("the plan filter splits channels, as far as there are enough") {
  const Planned p("filter", alexnet(), 8, 4);
  for (const char* name : {"features.0", "features.1", "features.2", "features.12"})
    CHECK(p[name] == Split{.channel = 4});
  CHECK(p["classifier.1"] == Split{.input = 4});  // 256 channels of 6 x 6 lie in parts already
  CHECK(p.fallbacks == 0);

  const Planned q("filter", lenet(), 8, 8);  // 6 channels in conv1, 10 classes
  CHECK(q["conv1"] == Split{.batch = 2, .channel = 4});
  CHECK_THAT(q.layers.at("conv1").reason,
             ContainsSubstring("channel:8") && ContainsSubstring("only 6 channels"));
  CHECK(q["conv2"] == Split{.channel = 8});
}

TEST_CASE("where a rank would have one value per channel, fewer ranks share the samples") {
  // Its last images have one pixel: of 4 samples on 3 ranks, two have a single one.
  const Network net = make_model("resnet18", {.input = {.c = 3, .h = 32, .w = 32}});
  const Planned p("spatial", net, 4, 3);
  CHECK(p["conv1"] == Split{.height = 3});
  CHECK(p["layer4.0.downsample.0"] == Split{.batch = 3});
  CHECK(p["layer4.0.downsample.1"] == Split{.batch = 2});
  CHECK_THAT(p.layers.at("layer4.0.downsample.1").reason,
             ContainsSubstring("split batch:3: ") && ContainsSubstring("one value per channel"));
  CHECK_THROWS_WITH(Planned("data", net, 4, 3),
                    ContainsSubstring("layer4.0.downsample.1 (BatchNorm): split batch:3: "));
}

TEST_CASE("LeNet, AlexNet, VGG-16 and ResNet-50 can be split by every built-in plan") {
  for (const char* model : {"lenet", "alexnet", "vgg16", "resnet50"}) {
    const Network net = make_model(model);
    for (const auto plan : plan_names())
      for (const int ranks : {1, 2, 4, 8}) {
        INFO(model << ", plan " << plan << " on " << ranks << " ranks");
        const auto decisions = decide(built_in_plan(plan, net, ranks, ranks), net, ranks);
        int cut = 0;
        for (std::size_t i = 1; i < decisions.size(); ++i) {
          const auto& v = net.graph()[i];
          INFO(v.name << " as " << decisions[i].used.text());
          CHECK(
              why_illegal(*v.layer, net.input_shapes(v, ranks), decisions[i].used, ranks).empty());
          CHECK(decisions[i].used.ways() == ranks);  // nobody is idle
          cut += decisions[i].used != Split{.batch = ranks};
        }
        CHECK((cut > 0) == (plan != "data" && ranks > 1));
      }
  }
}

TEST_CASE("an unknown plan is an error that suggests one") {
  const Network net = lenet();
  CHECK_THROWS_WITH(built_in_plan("spacial", net, 2, 2),
                    ContainsSubstring("did you mean spatial?") &&
                        ContainsSubstring("data, owt, spatial, filter"));
}
