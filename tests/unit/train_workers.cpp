// Workers: parts of a batch that ranks share out. What a training gives does not depend on how many
// ranks there are, nor on when ranks come and go.
#include "catch.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <chrono>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Dropout, and batch norm that each worker has for itself.
Network network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "a");
  net.add<BatchNorm>({}, "first");
  net.add<ReLU>({}, "relu");
  net.add<Dropout>({.rate = 0.25});
  net.add<Conv2D>({.channels = 6, .kernel = 3, .stride = 2}, "b");
  net.add<BatchNorm>({.momentum = 0.3}, "second");
  net.add<Linear>({.features = 4}, "c");
  return net;
}

struct Result {
  std::vector<double> losses, weights;
  Evaluation validation = {};

  bool operator==(const Result& o) const {
    return losses == o.losses && weights == o.weights && validation.loss == o.validation.loss &&
           validation.top1 == o.validation.top1 && validation.samples == o.validation.samples;
  }
};

struct Run {
  int started = 1, active = 0, workers = 8;
  std::vector<Change> changes = {};
  bool fast = true;
  std::optional<Precision> dtype = {};  ///< by default f32 where it is fast, else f64
  bool fuse = false;
  std::vector<bool> recompute = {};
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9};
  std::int64_t batch = 32, steps = 12;
  bool profiled = false;  ///< before the first step, between two, and when workers were averaged
};

Result train(const Run& run, std::vector<Resize>* resizes = nullptr) {
  const auto data = small_data(), validation = small_data(30, false);
  Result result;
  run_ranks(run.started, [&](World& world) {
    set_threads(1);
    Trainer trainer(network(), world, run.optimizer,
                    {.batch = run.batch,
                     .workers = run.workers,
                     .active = run.active,
                     .backend = run.fast ? "auto" : "reference",
                     .dtype = run.dtype.value_or(run.fast ? DType::f32 : DType::f64),
                     .recompute = run.recompute,
                     .fuse = run.fuse,
                     .schedule = parse_schedule("cosine")});
    const auto measure = [&] {
      if (run.profiled)
        profile(trainer.network(), trainer.ranks(), {.warmup = 1, .steps = 1, .alone = false});
    };
    measure();
    Changes changes{trainer, run.changes};
    FitOptions fit{.steps = run.steps, .validation = validation.get()};
    fit.resize = std::ref(changes);
    fit.on_step = [&](const StepResult& r) {
      if (r.step == 5) measure();
      if (world.rank() != 0) return;
      result.losses.push_back(r.loss);
      // Steps of this network are over before anybody could get ready.
      if (!run.changes.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0 && resizes) resizes->push_back(r);
    };
    for (const Epoch& epoch : trainer.fit(*data, fit))
      if (world.rank() == 0 && epoch.validation) result.validation = *epoch.validation;
    if (!trainer.active()) return;
    trainer.network().average_kept(trainer.stream());
    measure();
    if (world.rank() == 0) result.weights = weights(trainer.network());
  });
  return result;
}

}  // namespace

TEST_CASE("losses, weights and statistics are the same bits on 1, 2, 4 and 8 ranks") {
  const bool fast = GENERATE(false, true);
  const int which = GENERATE(0, 1, 2);
  Run run{.fast = fast};
  if (which == 1) run.optimizer = AdamW{};
  if (which == 2) run.optimizer = Optimizer(LARS{.rate = 1}).clip_norm(0.5);
  CAPTURE(fast, which);
  const Result one = train(run);
  REQUIRE(one.losses.size() == 12);
  for (const int ranks : {2, 4, 8}) {
    run.started = ranks;
    CAPTURE(ranks);
    CHECK(train(run) == one);
  }
}

TEST_CASE("so they are in narrow types, fused, and where layers are computed again") {
  const int which = GENERATE(0, 1, 2, 3);
  Run run;
  if (which == 0) run.dtype = DType::bf16;
  if (which == 1) run.fast = false, run.dtype = DType::f16;
  if (which == 2) {
    run.dtype = DType::bf16, run.fuse = true;
    run.optimizer = Optimizer(AdamW{}).clip_norm(0.5);
  }
  if (which == 3) run.recompute = {false, false, true, true, false, false, true, false};
  CAPTURE(which);
  const Result one = train(run);
  REQUIRE(one.losses.size() == 12);
  for (const int ranks : {2, 4}) {
    run.started = ranks;
    CAPTURE(ranks);
    CHECK(train(run) == one);
  }
}

TEST_CASE("a profile leaves workers what they keep") {
  const Result one = train({.started = 2});
  CHECK(train({.started = 2, .profiled = true}) == one);
}

TEST_CASE("on three ranks the sums round otherwise, and no more") {
  const Result one = train({.fast = false}), three = train({.started = 3, .fast = false});
  for (std::size_t i = 0; i < one.weights.size(); ++i)
    CHECK(three.weights[i] == Approx(one.weights[i]).epsilon(1e-9));
}

TEST_CASE("in f32, other numbers of ranks change losses and weights by a millionth at most") {
  const Result one = train({});
  const auto largest = [](const std::vector<double>& values) {
    double most = 0;
    for (const double v : values) most = std::max(most, std::abs(v));
    return most;
  };
  for (const int ranks : {3, 5, 6, 7}) {
    CAPTURE(ranks);
    const Result found = train({.started = ranks});
    REQUIRE(found.losses.size() == one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      CHECK(std::abs(found.losses[i] / one.losses[i] - 1) < 1e-6);
    std::vector<double> differences;
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      differences.push_back(found.weights[i] - one.weights[i]);
    CHECK(largest(differences) < 1e-6 * largest(one.weights));
  }
}

TEST_CASE("workers that are no power of two add up rows of them") {
  Run run{.workers = 12, .batch = 24};
  const Result one = train(run);
  for (const int ranks : {2, 4}) {
    run.started = ranks;
    CHECK(train(run) == one);
  }
}

TEST_CASE("ranks that come and go leave no trace") {
  Run run{.steps = 90};
  const Result alone = train(run);
  run.started = 8, run.active = 2;
  run.changes = {{2, 4}, {7, 1}, {9, 8}, {15, 2}, {18, 4}, {24, 1}};
  std::vector<Resize> resizes;
  CHECK(train(run, &resizes) == alone);
  REQUIRE(resizes.size() == 6);
  int from = 2;
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(resizes[i].from == from);
    CHECK(resizes[i].to == run.changes[i].ranks);
    CHECK(resizes[i].step > run.changes[i].step);
    CHECK((resizes[i].bytes > 0) == (resizes[i].to > from));
    from = resizes[i].to;
  }
}

TEST_CASE("inference of one's own takes the mean of what workers keep, or is refused") {
  const auto data = small_data();
  const auto message_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  for (const int ranks : {1, 2}) {
    std::string at_first, behind, borrowed, averaged;
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer(network(), world, SGD{.rate = 0.05},
                      {.batch = 32, .workers = 2, .backend = "reference", .dtype = DType::f64});
      PlacedNetwork& net = trainer.network();
      Targets targets(net);
      const auto infer = [&] {
        return message_of([&] {
          Context context{.stream = trainer.stream(), .training = false};
          context.targets = targets.move(trainer.stream());
          for (int w = 0; w < net.placing().turns(); ++w) net.forward(context);
        });
      };
      const std::string first = infer();
      for (const Epoch& epoch : trainer.fit(*data, {.steps = 3})) (void)epoch;
      const std::string then = infer(), apart = message_of([&] {
                                          const PlaceOptions& p = net.placing();
                                          network().place({.batch = p.batch,
                                                           .backend = p.backend,
                                                           .ranks = p.ranks,
                                                           .dtype = p.dtype,
                                                           .training = false,
                                                           .parameters_of = &net});
                                        });
      net.average_kept(trainer.stream());
      const std::string last = infer();
      if (world.rank() == 0) at_first = first, behind = then, borrowed = apart, averaged = last;
    });
    CHECK(at_first == "none");
    CHECK_THAT(behind, ContainsSubstring("expected average_kept()"));
    CHECK_THAT(borrowed, ContainsSubstring("expected average_kept()"));
    CHECK(averaged == "none");
  }
}

TEST_CASE("a resize between two steps of one's own loop") {
  const auto data = small_data();
  std::vector<double> expected, losses;
  run_ranks(4, [&](World& world) {
    set_threads(1);
    for (const bool resizes : {false, true}) {
      Trainer trainer(network(), world, SGD{.rate = 0.05},
                      {.batch = 32, .workers = 4, .active = resizes ? 1 : 4});
      const auto steps = [&](std::int64_t count) {
        if (!trainer.active()) return;
        Loader loader = trainer.loader(*data, true);
        for (std::int64_t i = 0; i < count; ++i) {
          const double loss = trainer.step(loader, 9).loss;
          if (world.rank() == 0) (resizes ? losses : expected).push_back(loss);
        }
      };
      if (!resizes) {
        steps(9);
        continue;
      }
      steps(4);
      trainer.resize(4, 1);
      steps(2);
      trainer.resize(2, 4);
      steps(3);
    }
  });
  CHECK(losses == expected);
}

TEST_CASE("layers that are split, sharded states and other plans go on with other ranks") {
  const int which = GENERATE(0, 1, 2, 3);
  CAPTURE(which);
  const auto data = small_data();
  const Network net = small_network(true);
  const auto splits = [&](int ranks) {
    std::map<std::string, Split> some;
    if (which == 1) some = {{"b", {.channel = ranks}}, {"c", {.input = ranks}}};
    if (which == 2) some = {{"a", {.height = ranks}}, {"d", {.channel = std::min(ranks, 2)}}};
    return splits_of(net, {.batch = 24, .splits = some}, ranks);
  };
  std::vector<std::vector<double>> found(2);
  for (const bool changes : {false, true})
    run_ranks(4, [&](World& world) {
      set_threads(1);
      Trainer trainer(net, world, Adam{},
                      {.batch = 24,
                       .active = changes ? 2 : 4,
                       .splits_for = splits,
                       .backend = "reference",
                       .dtype = DType::f64,
                       .splits = splits(changes ? 2 : 4),
                       .shard_optimizer = which == 3});
      FitOptions fit{.steps = 100};
      Changes wanted{trainer, {{3, 4}, {10, 1}, {15, 3}, {22, 2}}};
      if (changes) fit.resize = std::ref(wanted);
      int resizes = 0;
      fit.on_resize = [&](const Resize&) { ++resizes; };
      fit.on_step = [&](const StepResult& r) {
        if (world.rank() == 0) found[changes].push_back(r.loss);
        // Or the training is over before all are ready.
        if (changes && resizes < wanted.asked)
          std::this_thread::sleep_for(std::chrono::milliseconds(40));
      };
      for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
      if (world.rank() != 0) return;
      check(!changes || resizes == 4, "resized ", resizes, " times");
    });
  REQUIRE(found[1].size() == found[0].size());
  for (std::size_t i = 0; i < found[0].size(); ++i)
    CHECK(found[1][i] == Approx(found[0][i]).epsilon(1e-9));
}
