// What backward does not find it computes once more: the same losses, from less memory.
#include "catch.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <lamina/plan/plan.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Whether a layer's y shall not be kept.
using Marks = bool (*)(const Network::Vertex& v, std::size_t number);

bool all(const Network::Vertex&, std::size_t) { return true; }
bool every_other(const Network::Vertex&, std::size_t i) { return i % 2 == 0; }
bool cheap(const Network::Vertex& v, std::size_t) {
  return v.layer->type() == "BatchNorm" || v.layer->type() == "ReLU" || v.layer->type() == "Tanh";
}
bool all_but_sums(const Network::Vertex& v, std::size_t) { return v.layer->type() != "Add"; }

std::vector<bool> marked(const Network& net, Marks marks) {
  std::vector<bool> recompute = {false};
  for (std::size_t i = 1; i < net.graph().size(); ++i)
    recompute.push_back(marks(net.graph()[i], i));
  return recompute;
}

struct Run {
  std::vector<double> losses, weights;
  std::size_t activations = 0;
  bool operator==(const Run& other) const {
    return losses == other.losses && weights == other.weights;
  }
};

Network model_of(const std::string& name) {
  if (name == "small") return small_network(true);
  ModelOptions o;
  if (name == "alexnet" || name == "vgg11") o.width = 0.05, o.classes = 10;
  return make_model(name, o);
}

/// Three steps of training; of rank 0 on several.
Run train(const std::string& model, int ranks, const std::string& backend, Marks marks,
          const std::map<std::string, Split>& splits = {}) {
  Run run;
  run_ranks(ranks, [&](World& world) {
    Network net = model_of(model);
    if (!net.graph().back().layer->is_loss()) net.add<SoftmaxCrossEntropy>({}, "loss");
    const std::int64_t batch = 8;
    TrainerOptions options{.batch = batch,
                           .backend = backend,
                           .dtype = backend == "reference" ? DType::f64 : DType::f32,
                           .splits = splits_of(net, {.splits = splits}, ranks)};
    if (marks) options.recompute = marked(net, marks);
    Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9}, options);
    const Shape sample = net.sample();
    const auto data = synthetic({.limit = 3 * batch,
                                 .channels = int(sample.c),
                                 .height = int(sample.h),
                                 .width = int(sample.w),
                                 .classes = int(net.input_shapes(net.graph().back(), 1)[0].c),
                                 .seed = 3});
    const auto found = losses(trainer, *data, 3);
    if (world.rank() == 0)
      run = {found, weights(trainer.network()), trainer.network().memory().activations};
  });
  return run;
}

/// y = x. Only rank 0 reads x in backward, as if its back end had chosen another kernel.
class Fickle final : public Layer {
 public:
  struct Options {};
  explicit Fickle(Options) {}
  std::string_view type() const override { return "Fickle"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Axis splits() const override { return Axis::channel; }
  Cost cost(std::span<const Shape>, const Split&, DType) const override { return {}; }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    Placement p;
    p.layer = std::make_unique<Placed>();
    p.output = {xs[0].shape, xs[0].dtype, {}}, p.inputs = {p.output};
    p.reads_x = site.ranks().rank() == 0;
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context&, std::span<const View> xs, const View& y) override {
      copy_bytes(xs[0], y);
    }
    void backward(Context&, std::span<const View>, const View&, const View& dy,
                  std::span<const View> dxs) override {
      if (dxs[0]) copy_bytes(dy, dxs[0]);
    }
  };
};

}  // namespace

TEST_CASE("recomputed activations leave losses and weights as they are, bit for bit") {
  for (const char* model : {"small", "lenet", "resnet20", "alexnet", "vgg11"})
    for (const char* backend : {"reference", "auto"}) {
      if (backend == std::string("reference") && model_of(model).sample().h > 32) continue;
      const Run kept = train(model, 1, backend, nullptr);
      for (Marks marks : {all, every_other, cheap, all_but_sums}) {
        CAPTURE(model, backend);
        CHECK(train(model, 1, backend, marks) == kept);
      }
    }
}

TEST_CASE("recomputed activations of split layers are the same on every rank", "[splits]") {
  struct Case {
    const char* model;
    int ranks;
    std::map<std::string, Split> splits;
  };
  const Case cases[] = {
      {"small", 2, {}},
      {"small", 2, {{"a", {.height = 2}}, {"norm", {.height = 2}}, {"c", {.input = 2}}}},
      {"small", 3, {{"b", {.channel = 3}}, {"norm", {}}, {"c", {.input = 3}}}},
      {"small", 4, {{"a", {.height = 2, .width = 2}}, {"b", {.batch = 2, .input = 2}}}},
      {"lenet", 2, {{"conv1", {.height = 2}}, {"relu1", {.height = 2}}, {"conv2", {.height = 2}}}},
      {"lenet", 4, {{"fc1", {.input = 4}}, {"relu3", {}}, {"fc2", {.channel = 2}}}}};
  for (const Case& c : cases)
    for (const char* backend : {"reference", "auto"}) {
      const Run kept = train(c.model, c.ranks, backend, nullptr, c.splits);
      for (Marks marks : {all, every_other, cheap}) {
        CAPTURE(c.model, c.ranks, backend);
        CHECK(train(c.model, c.ranks, backend, marks, c.splits) == kept);
      }
    }
}

TEST_CASE("all ranks recompute what one of them reads", "[splits]") {
  const auto build = [] {
    Network net({.c = 8, .h = 1, .w = 1});
    net.add<Linear>({.features = 6}, "first");
    net.add<Fickle>({}, "it");
    net.add<Linear>({.features = 4}, "last");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  run_ranks(2, [&](World& world) {
    const PlacedNetwork net(
        build(),
        {.batch = 4,
         .backend = make_backend("reference", DType::f64),
         .ranks = world,
         .splits = {{.batch = 2}, {.channel = 2}, {.channel = 2}, {.input = 2}, {.batch = 2}},
         .recompute = {false, true, false, false, false},
         .dtype = DType::f64});
    for (const Step& step : net.steps())
      check(step.recomputed == (step.name == "first"), "rank ", world.rank(), ", ", step.name);
  });
}

TEST_CASE("recomputing takes less memory where activations wait for backward") {
  const auto activations = [](const char* model, Marks marks) {
    const Network net = model_of(model);
    if (marks == nullptr) marks = [](const Network::Vertex&, std::size_t) { return false; };
    const PlacedNetwork placed(
        net,
        {.batch = 8, .backend = make_backend("auto", DType::f32), .recompute = marked(net, marks)});
    return double(placed.memory().activations);
  };
  // Of a block conv, norm, relu only the convolutions' outputs stay: near half of it.
  CHECK(activations("resnet20", cheap) < 0.75 * activations("resnet20", nullptr));
  // Only the sums at the end of each block stay, and those of one block at a time.
  CHECK(activations("resnet50", all_but_sums) < 0.5 * activations("resnet50", nullptr));
  // Everything again at once gains nothing.
  CHECK(activations("resnet20", all) > 0.9 * activations("resnet20", nullptr));
}

TEST_CASE("only what backward reads is recomputed") {
  Network net({.c = 3, .h = 8, .w = 8});
  net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv");  // the norm reads its y
  net.add<BatchNorm>({}, "norm");                                   // in place, read by nobody
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 4}, "fc");  // nobody but the loss, which does not read it
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const PlacedNetwork placed = net.place({.batch = 2,
                                          .backend = make_backend("reference", DType::f64),
                                          .recompute = std::vector<bool>(net.graph().size(), true),
                                          .dtype = DType::f64});
  std::vector<std::string> names;
  for (const Step& step : placed.steps())
    if (step.recomputed) names.push_back(step.name);
  CHECK(names == std::vector<std::string>{"conv", "norm", "relu"});
  CHECK(placed.steps()[4].recomputes == std::vector<int>{1, 2, 3});
}
