// Ranks that were started unlike: each difference is named, on all ranks alike, before they begin.
#include "catch.hpp"
#include "support/training.hpp"

#include <lamina/comm/alike.hpp>

#include <functional>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What the ranks throw: the same on all of them, and of their own accord, or empty.
std::string error_of(int ranks, const std::function<void(World&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(
      ranks,
      [&](World& world) {
        std::string& mine = errors[std::size_t(world.rank())];
        try {
          body(world);
        } catch (const PeerError& e) {
          mine = text("of a peer: ", e.what());
        } catch (const Error& e) {
          mine = e.what();
        }
      },
      20);
  for (const std::string& e : errors) CHECK(e == errors[0]);
  return errors[0];
}

/// A layer of somebody's own, whose options nobody but its parameter tells.
class Offset final : public UnaryLayer {
 public:
  struct Options {
    double initial = 0;
    bool decay = true;
  };
  explicit Offset(Options o) : o_(o) {}
  std::string_view type() const override { return "Offset"; }
  Cost cost(std::span<const Shape>, const Split&, DType) const override { return {}; }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    placed->kernel = make(site.backend(), xs[0]);
    placed->offset = {.name = "offset",
                      .dims = {1},
                      .form = {{1, 1, 1, 1}, xs[0].dtype, {}},
                      .initial = {Initial::Kind::constant, o_.initial},
                      .trained = false,
                      .decay = o_.decay,
                      .replicas = site.along(Axis::batch)};
    return finish(site, std::move(placed));
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.activation({Activation::Kind::relu}, x);
  }

 private:
  struct Placed final : PlacedUnary {
    std::vector<Parameter*> parameters() override { return {&offset}; }
    Parameter offset;
  };

  Options o_;
};

/// A run in which a rank may have its own way.
struct Run {
  std::int64_t channels = 8;
  Conv2D::Options conv = {.channels = 8, .kernel = 3, .pad = 1};
  std::string name = "b";
  bool more = false;
  BatchNorm::Options norm = {};
  double dropout = 0.25, smoothing = 0;
  Offset::Options offset = {};
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9};
  TrainerOptions options = {.batch = 8, .backend = "reference"};
  DataOptions data = {.limit = 24, .channels = 3, .height = 8, .width = 8, .classes = 4};
  FitOptions fit = {.steps = 1};
  bool validate = true;
  std::int64_t step = 0;

  void go(World& world) const {
    set_threads(1);
    Network net({.c = 3, .h = 8, .w = 8});
    Node x = net.input().add<Conv2D>(conv, "a").add<BatchNorm>(norm, "norm");
    if (more) x = x.add<ReLU>({}, "one more");
    x.add<Offset>(offset, "offset")
        .add<Conv2D>({.channels = channels, .kernel = 1}, name)
        .add<MaxPool2D>({.window = 2}, "pool")
        .add<Dropout>({.rate = dropout}, "drop")
        .add<Linear>({.features = 4}, "fc")
        .add<SoftmaxCrossEntropy>({.label_smoothing = smoothing}, "loss");
    Trainer trainer(net, world, optimizer, options);
    trainer.progress().step = step;
    const auto train = synthetic(data), validation = synthetic(data);
    FitOptions o = fit;
    o.validation = validate ? validation.get() : nullptr;
    for (const Epoch& epoch : trainer.fit(*train, o)) (void)epoch;
  }
};

/// The error where one of three ranks has its own way.
std::string unlike(const std::function<void(Run&)>& its_way, int rank = 1) {
  return error_of(3, [&](World& world) {
    Run run;
    if (world.rank() == rank) its_way(run);
    run.go(world);
  });
}

Catch::Matchers::StdString::ContainsMatcher says(const std::string& what) {
  return ContainsSubstring("the ranks were started unlike: " + what);
}

}  // namespace

TEST_CASE("facts are compared, and named with their ranks") {
  const auto facts = [](int ranks, const std::function<std::vector<Fact>(int)>& of) {
    return error_of(ranks, [&](World& world) { check_alike(world.comm(), of(world.rank())); });
  };
  const std::string start = "the ranks were started unlike: ";
  CHECK(facts(3, [](int) { return std::vector<Fact>{{"a", "1"}, {"b", ""}}; }).empty());
  CHECK(facts(2, [](int r) {
          return std::vector<Fact>{{"--seed", text(r + 1)}};
        }) == start + "--seed is 1 on rank 0, but 2 on rank 1");
  CHECK(facts(5, [](int r) {
          return std::vector<Fact>{{"a", "x"}, {"b", r < 2 ? "y" : "z"}};
        }) == start + "b is y on rank 0, but z on ranks 2, 3 and 4");
  CHECK(facts(6, [](int r) {
          return std::vector<Fact>{{"b", r == 0 ? "" : r == 1 ? "y" : "z"}};
        }) == start + "b is empty on rank 0, but y on rank 1, but z on ranks 2, 3, 4, ...");
  CHECK(facts(2, [](int r) {
          std::vector<Fact> mine{{"a", "1"}};
          if (r > 0) mine.push_back({"c", "3 4"});
          return mine;
        }) == start + "c is missing on rank 0, but 3 4 on rank 1");
  CHECK(facts(2,
              [](int r) {
                std::vector<Fact> many;
                for (int i = 0; i < 5; ++i) many.push_back({text(i), text(r)});
                return many;
              }) == start +
                        "0 is 0 on rank 0, but 1 on rank 1; 1 is 0 on rank 0, but 1 on rank 1; "
                        "2 is 0 on rank 0, but 1 on rank 1; and 2 more");
}

TEST_CASE("what rank 0 does is done for all, and so is its failure") {
  CHECK(error_of(3, [](World& world) {
          const std::string all = on_first(world.comm(), [] { return std::string("done"); });
          check(all == "done", "rank ", world.rank(), " heard ", all);
        }).empty());
  CHECK(error_of(3, [](World& world) {
          on_first(world.comm(), [&]() -> std::string { throw Error("no such file"); });
        }) == "no such file");
}

TEST_CASE("ranks that were started alike train, whatever else they differ in") {
  CHECK(unlike([](Run& run) { run.fit.loader_threads = 2; }).empty());
  CHECK(unlike([](Run&) { set_threads(2); }).empty());
}

TEST_CASE("unlike networks are named by their layers") {
  CHECK_THAT(unlike([](Run& run) { run.channels = 9; }),
             says("b is Conv2D (8 1x1 stride 1x1 pad 0,0,0,0 dilation 1x1 groups 1) of offset on "
                  "rank 0, but Conv2D (9 1x1 "));
  CHECK_THAT(unlike([](Run& run) { run.name = "c"; }), says("b is Conv2D"));
  CHECK_THAT(unlike([](Run& run) { run.more = true; }),
             ContainsSubstring("of norm on rank 0, but"));
  CHECK_THAT(unlike([](Run& run) { run.conv.bias = false; }), says("a is Conv2D"));
  CHECK_THAT(unlike([](Run& run) { run.conv.he_normal = true; }), says("a is Conv2D"));
  CHECK_THAT(unlike([](Run& run) { run.norm.epsilon = 1.00001e-5; }), says("norm is BatchNorm"));
  CHECK_THAT(unlike([](Run& run) { run.norm.global = true; }), says("norm is BatchNorm (local"));
  CHECK_THAT(unlike([](Run& run) { run.dropout = 0.2500000001; }),
             says("drop is Dropout (0.25) of pool on rank 0, but Dropout (0.2500000001)"));
  CHECK_THAT(unlike([](Run& run) { run.smoothing = 0.1; }), says("loss is SoftmaxCrossEntropy"));
  CHECK_THAT(unlike([](Run& run) { run.offset.initial = 1; }, 2),
             says("offset.offset is 1x1x1x1, initially constant 0 on ranks below 2, but "));
  CHECK_THAT(unlike([](Run& run) { run.offset.decay = false; }), says("offset.offset is"));
}

TEST_CASE("unlike options are named") {
  CHECK_THAT(unlike([](Run& run) { run.options.seed = 2; }),
             says("the seed is 1 on rank 0, but 2 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.options.batch = 6; }),
             says("the global batch is 8 on rank 0, but 6 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.options.dtype = DType::f64; }),
             says("the type of numbers is f32 on rank 0, but f64 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.options.bucket_mb = 1; }), says("bucket_mb is 25 on"));
  CHECK_THAT(unlike([](Run& run) { run.options.shard_optimizer = true; }),
             says("shard_optimizer is false on rank 0, but true on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.options.communicate = false; }),
             says("communicate is true"));
  CHECK_THAT(unlike([](Run& run) { run.options.schedule = parse_schedule("cosine"); }),
             says("the schedule is constant, 0 epochs of warm-up on rank 0, but cosine"));
  CHECK_THAT(unlike([](Run& run) { run.options.schedule.warmup = 1; }), says("the schedule is"));
  CHECK_THAT(unlike([](Run& run) { run.options.splits.assign(9, {.batch = 3}); }),
             says("the split of input is missing on rank 0, but batch:3 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.optimizer = Adam{}; }),
             says("the optimizer is sgd, rate 0.05, momentum 0.9, weight decay 0 on rank 0, but "
                  "adam, rate 0.001"));
  CHECK_THAT(unlike([](Run& run) { run.optimizer.clip_norm(1); }), says("the optimizer is"));
  CHECK_THAT(unlike([](Run& run) { run.optimizer.decay_weights_only(); }), says("the optimizer"));
}

TEST_CASE("unlike data, and what is done with them, are named") {
  CHECK_THAT(unlike([](Run& run) { run.data.limit = 25; }),
             says("the number of images is 24 on rank 0, but 25 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.data.seed = 1; }), says("image 0 is 3 x 8 x 8 of label"));
  CHECK_THAT(unlike([](Run& run) { run.data.classes = 3; }),
             says("the number of classes is 4 on rank 0, but 3 on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.fit.shuffle = false; }), says("shuffle is true"));
  CHECK_THAT(unlike([](Run& run) { run.fit.augment = false; }), says("augment is true"));
  CHECK_THAT(unlike([](Run& run) { run.validate = false; }),
             says("validation is given on rank 0, but empty on rank 1"));
  CHECK_THAT(unlike([](Run& run) { run.fit.epochs = 2; }), says("epochs is 0"));
  CHECK_THAT(unlike([](Run& run) { run.fit.steps = 2; }), says("steps is 1"));
  CHECK_THAT(unlike([](Run& run) { run.fit.save = "/dev/null"; }), says("save is empty"));
  CHECK_THAT(unlike([](Run& run) { run.step = 3; }),
             says("the step to go on from is 0 on rank 0, but 3 on rank 1"));
}
