// Models placed and run, small, on the reference back end.
#include "catch.hpp"
#include "support/peek.hpp"

#include <lamina/base/random.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>

#include <cmath>

using namespace lamina;
using test::peek;

namespace {

PlacedNetwork place(const Network& net, std::int64_t batch, bool training = true,
                    DType t = DType::f32) {
  PlacedNetwork placed =
      net.place({.batch = batch, .backend = reference_backend(), .dtype = t, .training = training});
  placed.initialize(5);
  return placed;
}

const Parameter& parameter(const PlacedNetwork& net, std::string_view name) {
  for (const auto& n : net.parameters())
    if (n.name == name) return *n.parameter;
  throw Error(text("no parameter ", name));
}

}  // namespace

TEST_CASE("parameters have torchvision's names and dimensions") {
  using Dims = std::vector<std::int64_t>;
  SECTION("resnet18") {
    const PlacedNetwork net =
        place(make_model("resnet18", {.input = {.c = 3, .h = 32, .w = 32}}), 2, false);
    // As `sum(1 for _ in resnet18().parameters())` and with 20 batch norms of two averages.
    CHECK(net.parameters().size() == 62 + 40);
    CHECK(parameter(net, "conv1.weight").dims == Dims{64, 3, 7, 7});
    CHECK(parameter(net, "bn1.running_mean").dims == Dims{64});
    CHECK(parameter(net, "layer2.0.downsample.0.weight").dims == Dims{128, 64, 1, 1});
    CHECK(parameter(net, "layer2.0.downsample.1.running_var").dims == Dims{128});
    CHECK(parameter(net, "layer4.1.bn2.bias").dims == Dims{512});
    CHECK(parameter(net, "fc.weight").dims == Dims{1000, 512});
    CHECK(parameter(net, "fc.bias").dims == Dims{1000});
    CHECK_THROWS(parameter(net, "conv1.bias"));
  }
  SECTION("resnet50") {
    const PlacedNetwork net =
        place(make_model("resnet50", {.input = {.c = 3, .h = 32, .w = 32}}), 2, false);
    CHECK(net.parameters().size() == 161 + 106);
    CHECK(parameter(net, "layer1.0.downsample.0.weight").dims == Dims{256, 64, 1, 1});
    CHECK(parameter(net, "layer4.2.conv3.weight").dims == Dims{2048, 512, 1, 1});
  }
  SECTION("lenet") {
    const PlacedNetwork net = place(make_model("lenet"), 1, false);
    CHECK(net.parameters().size() == 10);
    CHECK(parameter(net, "fc1.weight").dims == Dims{120, 400});
  }
}

TEST_CASE("zero_gamma makes every residual block start as its shortcut") {
  const PlacedNetwork net = place(
      make_model("resnet20", {.input = {.c = 3, .h = 8, .w = 8}, .zero_gamma = true}), 1, false);
  int zero = 0;
  for (const auto& n : net.parameters())
    if (n.name.ends_with(".weight") && n.name.find("bn") != std::string::npos) {
      const bool last = n.name.ends_with("bn2.weight");
      CHECK(peek(n.parameter->value).as<float>()[0] == (last ? 0 : 1));
      zero += last;
    }
  CHECK(zero == 9);
}

TEST_CASE("the CIFAR shortcut is every second position, and zeros for the new channels") {
  const PlacedNetwork net =
      place(make_model("resnet20", {.input = {.c = 3, .h = 8, .w = 8}}), 1, true, DType::f64);
  const auto step = [&](std::string_view name) -> const Step& {
    for (const Step& s : net.steps())
      if (s.name == name) return s;
    throw Error("no such step");
  };
  const Step &sub = step("layer2.0.subsample"), &pad = step("layer2.0.pad");
  Stream stream;
  Context context{stream};
  const auto x = peek(sub.buffers.x[0]).elements<double>();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = double(i);
  for (const Step* s : {&sub, &pad})
    s->placement.layer->forward(context, s->buffers.x, s->buffers.y);
  const auto y = peek(pad.buffers.y).elements<double>();
  REQUIRE(pad.buffers.y.shape == Shape{1, 32, 4, 4});
  for (std::size_t c = 0; c < 32; ++c)
    for (std::size_t h = 0; h < 4; ++h)
      for (std::size_t w = 0; w < 4; ++w)
        REQUIRE(y[(c * 4 + h) * 4 + w] == (c < 16 ? x[(c * 8 + 2 * h) * 8 + 2 * w] : 0));
}

TEST_CASE("models learn a batch by heart") {
  struct Case {
    const char* name;
    Shape input;
    double rate;
    int steps;
  };
  const Case c = GENERATE(Case{"lenet", {.c = 1, .h = 28, .w = 28}, 0.1, 40},
                          Case{"resnet20", {.c = 3, .h = 8, .w = 8}, 0.1, 10},
                          Case{"resnet18", {.c = 3, .h = 32, .w = 32}, 0.02, 6});
  INFO(c.name);
  const std::int64_t batch = 4;
  PlacedNetwork net = place(make_model(c.name, {.classes = 4, .input = c.input}), batch);
  const Tensor labels({batch, 1, 1, 1}, DType::i32, net.placing().backend->memory());
  for (int i = 0; i < batch; ++i) peek(labels).as<std::int32_t>()[i] = i;
  Stream stream;
  Context context{stream};
  context.targets = labels;
  double first = 0, last = 0;
  for (int step = 0; step < c.steps; ++step) {
    const auto x = peek(net.x()).elements<float>();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = Random(3).normal(i);
    context.step = step;
    net.forward(context);
    net.backward(context);
    last = peek(net.y()).as<double>()[0];
    if (step == 0) first = last;
    for (const auto& n : net.parameters())
      if (n.parameter->trained) {
        const auto w = peek(n.parameter->value).elements<float>();
        const auto g = peek(n.parameter->grad).elements<float>();
        for (std::size_t i = 0; i < w.size(); ++i) w[i] -= float(c.rate) * g[i];
      }
  }
  CHECK(first == Approx(std::log(4)).margin(1.5));
  CHECK(last < 0.6 * first);
}
