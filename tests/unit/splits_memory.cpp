// What a network takes is known before it is allocated, under every plan; and copies of a parameter
// must lie alike.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// `prefix*` or a name.
using Cuts = std::vector<std::pair<std::string, Split>>;

std::vector<Split> plan_of(const Network& net, const Cuts& plan, int ranks) {
  std::vector<Split> splits;
  for (const auto& v : net.graph()) {
    splits.push_back({.batch = ranks});
    for (const auto& [name, split] : plan)
      if (v.name == name ||
          (name.back() == '*' && v.name.starts_with(name.substr(0, name.size() - 1))))
        splits.back() = split;
  }
  return splits;
}

struct Case {
  const char* model;
  int ranks;
  Cuts plan;
  bool recompute = false, shard = false;
};

Network model_of(const Case& c) {
  ModelOptions o;
  if (c.model == std::string("alexnet")) o.width = 0.05, o.classes = 10;
  return make_model(c.model, o);
}

const Case cases[] = {
    {"lenet", 1, {}},
    {"lenet", 2, {{"conv*", {.height = 2}}, {"fc1", {.channel = 2}}, {"fc2", {.input = 2}}}},
    {"lenet", 4, {{"conv2", {.channel = 2, .height = 2}}, {"fc1", {.channel = 2}}, {"fc3", {}}}},
    {"alexnet", 1, {}},
    {"alexnet", 2, {{"classifier*", {.channel = 2}}}},
    {"alexnet", 4, {{"features*", {.height = 2, .width = 2}}}},
    {"resnet20", 1, {}},
    {"resnet20", 1, {}, true},
    {"resnet20", 2, {{"layer1*", {.height = 2}}}, true},
    {"resnet20", 2, {{"layer1*", {.height = 2}}}},
    {"resnet20", 4, {{"layer2*", {.height = 2, .width = 2}}, {"fc", {.channel = 4}}}},
    {"resnet20", 2, {}, false, true},
    {"lenet", 3, {}, false, true},
    {"lenet", 4, {{"conv*", {.batch = 2, .channel = 2}}, {"fc2", {}}}, false, true},
};

}  // namespace

TEST_CASE("memory: what is planned is what is allocated", "[splits]") {
  if (!counts_allocations()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Case& c : cases)
      run_ranks(c.ranks, [&](World& world) {
        const std::string backend = dtype == DType::f32 ? "auto" : "reference";
        const Network model = model_of(c);
        const Optimizer optimizer = Adam{};
        PlaceOptions options{.batch = 8,
                             .backend = make_backend(backend, dtype),
                             .ranks = world,
                             .splits = plan_of(model, c.plan, world.size()),
                             .dtype = dtype,
                             .shard_optimizer = c.shard};
        if (c.recompute) options.recompute.assign(model.graph().size(), true);
        const TensorBytes first;
        PlacedNetwork net(model, options);
        const std::size_t kernels = first.bytes(), most = kernels - first.rounding();
        const Memory m = optimizer.memory(net);
        const TensorBytes second;
        net.allocate();
        const Tensor states = optimizer.attach(net);
        const std::size_t buffers = second.bytes(), least = buffers - second.rounding();

        const auto where = [&] {
          return text(c.model, ", rank ", world.rank(), " of ", world.size(), ", ", backend, ": ");
        };
        Memory layers;
        std::size_t scratch = 0;
        for (const Step& step : net.steps()) {
          const Memory l = optimizer.memory(step);
          layers.parameters += l.parameters, layers.gradients += l.gradients;
          layers.optimizer += l.optimizer, layers.messages += l.messages;
          layers.activations += l.activations;
          layers.workspace += l.workspace - step.placement.scratch;
          scratch = std::max(scratch, step.placement.scratch);
        }
        // What its constructor made; the buffer that kernels share, and messages in buckets, come
        // later.
        const std::size_t sums = StepNumbers::bytes() + (net.squares() ? net.squares().bytes() : 0);
        std::size_t parts = 0, adam = 0;
        for (const Bucket& b : net.buckets()) {
          parts += b.part.bytes();
          adam += std::size_t(2 + b.keeps_master()) * std::size_t(b.own().size) * size_of(b.state);
        }
        const std::size_t own = m.workspace - sums - scratch + m.messages - parts;
        const std::size_t rest = m.total() - own;
        check(least <= rest && rest <= buffers, where(), "planned ", rest, " bytes, allocated ",
              buffers);
        // oneDNN's kernels also try layouts.
        check((backend == "auto" || most <= own) && own <= kernels, where(), "counted ", own,
              " bytes of workspace, allocated ", kernels);
        check(layers.parameters == m.parameters && layers.gradients == m.gradients &&
                  layers.optimizer == m.optimizer && layers.messages == m.messages &&
                  layers.workspace + scratch == m.workspace,
              where(), "the layers do not add up");
        check(layers.activations >= m.activations, where(), "the layers share more than there is");
        check(m.optimizer == adam, where(), "Adam keeps two values, and master weights");
        check((parts > 0) == c.shard, where(), "it is sharded, or not");
      });
}

TEST_CASE("memory: a halo takes room for gradients only where there are any", "[splits]") {
  // Of 8 rows a rank has 4 and wants a fifth: 2 samples of 4 channels, and nobody asks for the
  // gradient of the images.
  const std::size_t wide = 2 * 4 * 5 * 6 * sizeof(double);
  const auto workspace = [](const char* name, bool training) {
    std::size_t bytes = 0;
    run_ranks(2, [&](World& world) {
      Network layers({.c = 4, .h = 8, .w = 6});
      for (const char* conv : {"first", "second"})
        layers.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, conv);
      layers.add<MaxPool2D>({.window = 3, .stride = 1, .pad = 1}, "pool");
      const PlacedNetwork net(
          layers, {.batch = 2,
                   .backend = make_backend("reference", DType::f64),
                   .ranks = world,
                   .splits = plan_of(layers, {{"*", {.height = 2}}, {"input", {.batch = 2}}}, 2),
                   .dtype = DType::f64,
                   .training = training});
      if (world.rank() > 0) return;
      for (const Step& step : net.steps())
        if (step.name == name) bytes = step.placement.workspace - step.placement.messages;
    });
    return bytes;
  };
  CHECK(workspace("second", true) == workspace("first", true) + wide);
  CHECK(workspace("second", false) == workspace("first", false));
  CHECK(workspace("first", false) == workspace("first", true));
  CHECK(workspace("pool", true) == workspace("pool", false) + wide);
}

TEST_CASE("memory: a split by channel divides what weights take", "[splits]") {
  const auto on = [](int ranks, const Cuts& plan) {
    Memory first;
    run_ranks(ranks, [&](World& world) {
      const Network layers = model_of({"alexnet", ranks, {}});
      const PlacedNetwork net(layers, {.batch = 8,
                                       .backend = make_backend("reference", DType::f32),
                                       .ranks = world,
                                       .splits = plan_of(layers, plan, ranks)});
      if (world.rank() == 0) first = net.memory();
    });
    return first;
  };
  const Memory whole = on(1, {}), data = on(4, {}), owt = on(4, {{"classifier*", {.channel = 4}}});
  CHECK(data.parameters == whole.parameters);
  CHECK(double(data.activations) < 0.3 * double(whole.activations));
  CHECK(double(owt.parameters) < 0.6 * double(whole.parameters));
}

TEST_CASE("memory: a step under a plan allocates nothing", "[splits]") {
  if (!counts_allocations()) return;
  const bool shard = GENERATE(false, true);
  CAPTURE(shard);
  const auto data = small_data();
  std::size_t count = 1;
  run_ranks(2, [&](World& world) {
    Network net = small_network(true);
    net.add<SoftmaxCrossEntropy>({}, "loss");
    const Cuts plan = {{"a", {.height = 2}}, {"b", {.channel = 2}}, {"c", {.input = 2}}, {"d", {}}};
    Trainer trainer(net, world, Optimizer(LARS{}).clip_norm(1),
                    {.batch = 16,
                     .backend = "reference",
                     .splits = plan_of(net, plan, 2),
                     .bucket_mb = 1e-3,
                     .shard_optimizer = shard});
    const Allocated all = allocated_by_steps(trainer, *data);
    if (world.rank() == 0) count = all.count;
  });
  CHECK(count == 0);
}

namespace {

/// A layout that is plain in all but its name.
class Named final : public LayoutKind {
 public:
  std::string name() const override { return "special"; }
  std::int64_t elements() const override { return 2; }
  bool equals(const LayoutKind&) const override { return true; }
  std::uint64_t fingerprint() const override { return 2; }
};

/// y = x, with a weight that lies otherwise on the second rank.
class Unlike final : public Layer {
 public:
  struct Options {};
  explicit Unlike(Options) {}
  std::string_view type() const override { return "Unlike"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape>, const Split&, DType) const override {
    return {.parameters = 1};
  }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    Parameter& w = placed->w;
    w.name = "weight", w.dims = {1}, w.form = {{1, 1, 1, 1}, xs[0].dtype, {}};
    if (site.ranks().rank() == 1) w.form.layout = Layout(std::make_shared<Named>());
    w.replicas = site.along(Axis::batch);
    Placement p;
    p.layer = std::move(placed);
    p.output = xs[0], p.inputs = {xs[0]};
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context&, std::span<const View>, const View&) override {}
    void backward(Context&, std::span<const View>, const View&, const View&,
                  std::span<const View>) override {}
    std::vector<Parameter*> parameters() override { return {&w}; }

    Parameter w;
  };
};

}  // namespace

TEST_CASE("copies of a parameter that lie unlike are refused by name", "[splits]") {
  const auto place = [&](World& world) {
    Network mine({.c = 1, .h = 1, .w = 1});
    mine.add<Unlike>({}, "odd");
    mine.place({.batch = 2, .backend = make_backend("reference", DType::f32), .ranks = world});
  };
  CHECK_THROWS_WITH(run_ranks(2, place), ContainsSubstring("odd.weight: rank 1 keeps it as") &&
                                             ContainsSubstring("special"));
  CHECK_NOTHROW(run_ranks(1, place));
}
