// Training with bf16 and f16: as f32 does, but for rounding, on any ranks; with master weights, of
// which nothing is lost on the way to a file and back.
#include "catch.hpp"
#include "support/random_plans.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <lamina/train/safetensors.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

using namespace lamina;
using namespace lamina::test;

namespace {

/// The back ends that compute in bf16.
std::vector<std::string> engines() {
  std::vector<std::string> all{"reference"};
  if (has_onednn()) all.push_back("onednn");
  return all;
}

struct Run {
  std::string backend = "reference";
  Precision precision = DType::bf16;
  int ranks = 1;
  std::string plan = "data";
  std::int64_t micro_batch = 0;
  bool shard = false, batch_norm = true, recompute = false, fuse = false;
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9, .weight_decay = 1e-3};
};

Trainer trainer_of(const Run& run, World& world) {
  set_threads(1);
  Network net = small_network(run.batch_norm);
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
  TrainerOptions o{.batch = 24,
                   .micro_batch = run.micro_batch,
                   .evaluation_batch = 10,
                   .backend = run.backend,
                   .dtype = run.precision,
                   .bucket_mb = 2e-3,
                   .first_bucket_mb = 1e-3,
                   .shard_optimizer = run.shard};
  const std::int64_t at_once = run.micro_batch > 0 ? run.micro_batch : o.batch;
  o.splits = splits_of(decide(built_in_plan(run.plan, net, at_once, run.ranks), net, at_once));
  o.fuse = run.fuse, o.recompute.assign(net.graph().size(), run.recompute);
  o.recompute[0] = false;
  return Trainer(net, world, run.optimizer, o);
}

struct Trained {
  std::vector<double> losses, weights;
  Evaluation evaluation;
};

Trained train(const Run& run, int steps = 20) {
  Trained all;
  std::vector<std::vector<double>> each(static_cast<std::size_t>(run.ranks));
  const auto data = small_data(), validation = small_data(30, false);
  run_ranks(run.ranks, [&](World& world) {
    Trainer trainer = trainer_of(run, world);
    const auto found = losses(trainer, *data, steps, {.epochs = 10});
    const Evaluation e = trainer.evaluate(*validation);
    each[std::size_t(world.rank())] = weights(trainer.network());
    if (world.rank() == 0) all = {found, weights(trainer.network()), e};
  });
  if (run.plan == "data")
    for (const auto& w : each) CHECK(w == each[0]);  // bit by bit
  return all;
}

/// The largest difference of two losses of the same step.
double apart(const Trained& a, const Trained& b) {
  double worst = std::abs(a.evaluation.loss - b.evaluation.loss) / b.evaluation.loss;
  check(a.losses.size() == b.losses.size(), "other steps");
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]) / b.losses[i]);
  return worst;
}

std::string file(const char* name) {
  return text("/tmp/lamina-precision-", getpid(), '-', name, ".safetensors");
}

/// Every tensor of a checkpoint, by name.
std::map<std::string, std::vector<double>> tensors_of(const std::string& path) {
  const SafetensorsFile f(path);
  std::map<std::string, std::vector<double>> all;
  for (const StoredTensor& t : f.tensors()) {
    CHECK(t.dtype == "F32");
    auto& values = all[t.name];
    values.resize(std::size_t(t.size()));
    f.read(t, DType::f64, values.data());
  }
  return all;
}

}  // namespace

TEST_CASE("training with bf16 and f16 follows that with f32") {
  const Trained wide = train({.precision = DType::f32});
  CHECK(wide.losses.back() < 0.8 * wide.losses.front());
  for (const std::string& backend : engines()) {
    CAPTURE(backend);
    const double apart_by = apart(train({.backend = backend}), wide);
    CHECK((apart_by > 0 && apart_by < 0.05));
  }
  const double f16 = apart(train({.precision = DType::f16}), wide);
  CAPTURE(f16);
  CHECK((f16 > 0 && f16 < 0.01));
}

TEST_CASE("with bf16, ranks train as one does, under any plan") {
  const std::string backend = GENERATE(from_range(engines()));
  const Trained one = train({.backend = backend});
  for (const int ranks : {2, 3})
    for (const char* plan : {"data", "spatial", "owt", "filter"}) {
      CAPTURE(backend, ranks, plan);
      CHECK(apart(train({.backend = backend, .ranks = ranks, .plan = plan}), one) < 0.05);
    }
}

TEST_CASE("with bf16, a step split along any axis gives the gradients of one rank") {
  const auto build = between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1});
  const std::string backend = GENERATE(from_range(engines()));
  CAPTURE(backend);
  StepOn o{.backend = backend, .dtype = DType::bf16};
  const Whole alone = step_on(1, build, o);
  for (const Split& split : {Split{.batch = 2}, Split{.channel = 2}, Split{.input = 2},
                             Split{.height = 2}, Split{.width = 2}}) {
    CAPTURE(split.text());
    o.splits["it"] = split;
    std::string where;
    const double d = difference(alone, step_on(2, build, o), &where);
    INFO(where);
    CHECK(d < (split.batch == 2 ? 1e-4 : 0.02));
  }
}

TEST_CASE("a sharded optimizer keeps the same master weights") {
  const std::string backend = GENERATE(from_range(engines()));
  CAPTURE(backend);
  const Run run{.backend = backend, .ranks = 3};
  Run sharded = run;
  sharded.shard = true;
  const Trained a = train(run), b = train(sharded);
  CHECK(a.losses == b.losses);
  CHECK(a.weights == b.weights);
}

TEST_CASE("what is recomputed in bf16 is what was kept") {
  const std::string backend = GENERATE(from_range(engines()));
  for (const int ranks : {1, 2})
    for (const bool fuse : {false, true}) {
      CAPTURE(backend, ranks, fuse);
      const Run run{.backend = backend, .ranks = ranks, .fuse = fuse};
      Run again = run;
      again.recompute = true;
      const Trained a = train(run), b = train(again);
      CHECK(a.losses == b.losses);
      CHECK(a.weights == b.weights);
    }
}

TEST_CASE("fused layers train in bf16 as layers by themselves") {
  for (const std::string& backend : engines()) {
    CAPTURE(backend);
    Run run{.backend = backend};
    const Trained one = train(run);
    run.fuse = true;
    CHECK(apart(train(run), one) < 0.05);
  }
}

TEST_CASE("micro-batches with bf16 train as the whole batch") {
  const std::string backend = GENERATE(from_range(engines()));
  for (const int ranks : {1, 2}) {
    CAPTURE(backend, ranks);
    const Run run{.backend = backend, .ranks = ranks, .batch_norm = false};
    Run parts = run;
    parts.micro_batch = 8;
    CHECK(apart(train(parts), train(run)) < 0.02);
  }
}

TEST_CASE("other optimizers, norms and rules of one's own work on master weights") {
  const CustomRule own{.name = "signs",
                       .rate = 1e-3,
                       .states = 1,
                       .update = [](Stream& stream, const UpdateStep& step, const View& w,
                                    const View& dw, std::span<const View> states) {
                         stream.wait();
                         check(states[0].dtype == DType::f32, "a state is ", name(states[0].dtype));
                         const auto values = peek(w).elements<float>(),
                                    grads = peek(dw).elements<float>();
                         for (std::size_t i = 0; i < values.size(); ++i)
                           values[i] -= float(step.rate) * float((grads[i] > 0) - (grads[i] < 0));
                       }};
  Optimizer clipped = Adam{.rate = 3e-3};
  clipped.clip_norm(0.5);
  for (const Optimizer& optimizer :
       {Optimizer(AdamW{.rate = 3e-3}), clipped, Optimizer(LARS{.rate = 1}), Optimizer(own)})
    for (const bool shard : {false, true}) {
      CAPTURE(optimizer.text(), shard);
      const Run run{.ranks = 2, .shard = shard, .optimizer = optimizer};
      Run wide = run;
      wide.precision = DType::f32;
      const Trained got = train(run, 10);
      CHECK(got.losses.back() < got.losses.front());
      CHECK(apart(got, train(wide, 10)) < 0.05);
    }
}

TEST_CASE("gradients may be bf16, states f64") {
  Precision precision = DType::bf16;
  precision.gradients = DType::bf16;
  const Trained one = train({});
  CHECK(apart(train({.precision = precision, .ranks = 2}), one) < 0.05);
  precision = DType::f32;
  precision.states = DType::f64;
  const Trained exact = train({.precision = precision, .ranks = 2, .shard = true});
  CHECK(apart(exact, train({.precision = DType::f32})) < 1e-4);
}

TEST_CASE("steps too small for bf16 add up in the master weights") {
  const std::string path = file("small");
  std::vector<std::map<std::string, std::vector<double>>> first;
  const auto moved = [&](const Precision& precision) {
    World world;
    Run run{.precision = precision, .optimizer = SGD{.rate = 1e-5}};
    Trainer trainer = trainer_of(run, world);
    trainer.save(path);
    const auto before = tensors_of(path);
    first.push_back(before);
    losses(trainer, *small_data(), 20, {.epochs = 10});
    trainer.save(path);
    std::vector<double> all;
    for (const auto& [name, after] : tensors_of(path))
      for (std::size_t i = 0; i < after.size() && name.starts_with("b."); ++i)
        all.push_back(after[i] - before.at(name)[i]);
    // The values are the master weights rounded.
    const auto after = tensors_of(path);
    for (const auto& n : trainer.network().parameters())
      if (n.parameter->value.dtype == DType::bf16)
        CHECK(numbers(peek(n.parameter->value)) == [&] {
          std::vector<double> rounded = after.at(n.name);
          for (double& v : rounded) v = BF16(v);
          return rounded;
        }());
    return all;
  };
  const auto narrow = moved(DType::bf16), wide = moved(DType::f32);
  CHECK(first[0] == first[1]);  // master weights are drawn as f32 has them
  double square = 0, difference = 0;
  for (std::size_t i = 0; i < wide.size(); ++i)
    square += wide[i] * wide[i], difference += std::pow(narrow[i] - wide[i], 2);
  CHECK(square > 0);
  CHECK(std::sqrt(difference / square) < 0.1);
  std::filesystem::remove(path);
}

TEST_CASE("an optimizer that is attached to a network begins with its values") {
  const auto run = [](World& world) {
    const Network net = local_norm_network();
    PlacedNetwork placed = net.place({.batch = 8,
                                      .backend = reference_backend(),
                                      .ranks = world,
                                      .dtype = DType::bf16,
                                      .shard_optimizer = world.size() > 1});
    placed.initialize(5);
    const std::vector<double> before = weights(placed);
    const Optimizer optimizer = SGD{};
    const Tensor states = optimizer.attach(placed);
    Stream stream;
    const Tensor labels(
        placed.network().graph().back().layer->targets(
            placed.network().input_shapes(placed.network().graph().back(), placed.rows().size)),
        placed.placing().backend->memory());
    Context context{.stream = stream, .targets = labels};
    placed.forward(context), placed.backward(context);
    optimizer.update(placed, stream, 0, 1);  // changes nothing
    stream.wait();
    std::vector<double> after = weights(placed);
    check(before.size() == after.size() && !before.empty(), "sizes");
    std::size_t i = 0;
    for (const auto& n : placed.parameters())
      for (std::int64_t e = 0; e < n.parameter->size(); ++e, ++i)
        check(!n.parameter->trained || before[i] == after[i], n.name, " has changed");
  };
  for (const int ranks : {1, 2}) run_ranks(ranks, run);
}

TEST_CASE("resuming with bf16 is bit-equal") {
  const std::string backend = GENERATE(from_range(engines()));
  const int ranks = GENERATE(1, 2);
  const bool shard = GENERATE(false, true);
  CAPTURE(backend, ranks, shard);
  const std::string path = file("resumed");
  const auto data = small_data();
  const auto state = [&](bool interrupted) {
    Trained all;
    run_ranks(ranks, [&](World& world) {
      const Run run{.backend = backend, .ranks = ranks, .shard = shard, .optimizer = Adam{}};
      auto trainer = std::make_unique<Trainer>(trainer_of(run, world));
      losses(*trainer, *data, 6, {.epochs = 10});
      trainer->save(path);
      if (interrupted) {
        trainer = std::make_unique<Trainer>(trainer_of(run, world));
        trainer->resume(path);
      }
      const auto l = losses(*trainer, *data, 16, {.epochs = 10});
      if (world.rank() == 0) all = {l, weights(trainer->network()), {}};
    });
    return all;
  };
  const Trained whole = state(false), resumed = state(true);
  CHECK(whole.losses == resumed.losses);
  CHECK(whole.weights == resumed.weights);
  std::filesystem::remove(path);
}

TEST_CASE("checkpoints go from bf16 to f32 and back") {
  const std::string backend = GENERATE(from_range(engines()));
  const int ranks = GENERATE(1, 2);
  const bool shard = GENERATE(false, true);
  const std::string first = file("first"), second = file("second");
  const auto data = small_data();
  const Run narrow{
      .backend = backend, .ranks = ranks, .plan = ranks > 1 ? "owt" : "data", .shard = shard};
  Run wide = narrow;
  wide.precision = DType::f32;
  std::vector<double> values, again, loaded;
  run_ranks(ranks, [&](World& world) {
    Trainer trainer = trainer_of(narrow, world);
    losses(trainer, *data, 3, {.epochs = 10});
    trainer.save(first);
    Trainer other = trainer_of(wide, world);
    other.resume(first);
    other.save(second);
    Trainer back = trainer_of(narrow, world);
    back.resume(second);
    back.save(second);
    Network net = trainer.network().network();
    PlaceOptions o = trainer.network().placing();
    o.training = false, o.shard_optimizer = false;
    PlacedNetwork inference = net.place(o);
    load_parameters(second, inference, true, world);
    if (world.rank() == 0)
      values = weights(trainer.network()), again = weights(back.network()),
      loaded = weights(inference);
  });
  const auto before = tensors_of(first), after = tensors_of(second);
  CHECK(before.contains("optimizer.0/a.weight"));
  CHECK(!before.contains("optimizer.1/a.weight"));
  CHECK(before == after);
  CHECK(values == again);
  CHECK(values == loaded);
  std::filesystem::remove(first), std::filesystem::remove(second);
}

TEST_CASE("a network without an optimizer saves what it has") {
  const std::string path = file("values");
  Network net = small_network(true);
  const auto place = [&](DType t) {
    return net.place({.batch = 2, .backend = reference_backend(), .dtype = t});
  };
  PlacedNetwork narrow = place(DType::bf16), wide = place(DType::f32);
  narrow.initialize(1), wide.initialize(2);
  save_checkpoint(path, narrow, {});
  CHECK(SafetensorsFile(path).find("a.weight")->dtype == "BF16");
  CHECK(SafetensorsFile(path).find("norm.weight")->dtype == "F32");
  load_parameters(path, wide);
  CHECK(weights(wide) == weights(narrow));
  std::filesystem::remove(path);
}

TEST_CASE("gradients are counted as wide as they are sent") {
  const Network net = small_network(false);
  const PlacedNetwork placed(net,
                             {.batch = 2, .backend = reference_backend(), .dtype = DType::bf16});
  for (const Step& step : placed.steps()) {
    if (!step.layer) continue;
    const Cost wide = step.cost(DType::f32), narrow = step.cost(placed.placing().dtype);
    CHECK(narrow.forward.bytes == wide.forward.bytes / 2);
    REQUIRE(narrow.messages.size() == wide.messages.size());
    for (std::size_t i = 0; i < wide.messages.size(); ++i) {
      const bool gradient = wide.messages[i].pass == Pass::weight_grad;
      CHECK(narrow.messages[i].bytes == wide.messages[i].bytes / (gradient ? 1 : 2));
    }
  }
  const UpdateRule momentum{.momentum = 0.9};  // reads dw; reads and writes v and master weights
  CHECK(update_work(momentum, 10, DType::bf16).bytes == 10 * (4 + 8 + 8 + 2));
}

TEST_CASE("unlike precisions on two ranks are named") {
  CHECK_THROWS_WITH(
      run_ranks(2,
                [&](World& world) {
                  Run run{.precision = DType::bf16, .ranks = 2};
                  if (world.rank() == 1) run.precision.gradients = DType::bf16;
                  trainer_of(run, world);
                }),
      ContainsSubstring("the type of numbers") && ContainsSubstring("bf16 (gradients bf16)"));
}

TEST_CASE("a back end that lacks a precision says so") {
  const Network net = small_network(false);
  Precision precision = DType::bf16;
  precision.weights = DType::f32;
  CHECK_THROWS_WITH(net.place({.batch = 2, .backend = reference_backend(), .dtype = precision}),
                    ContainsSubstring("does not compute in bf16 (weights f32)"));
  CHECK(make_backend("auto", DType::f16)->name() == make_backend("reference", DType::f32)->name());
  if (!has_onednn()) return;
  CHECK(make_backend("auto", DType::bf16)->name() == "onednn");
  precision = DType::bf16, precision.gradients = DType::bf16;
  CHECK(make_backend("auto", precision)->name() == make_backend("reference", DType::f32)->name());
  for (const Precision& p : {Precision(DType::f16), precision})
    CHECK_THROWS_WITH(make_backend("onednn", p),
                      text("back end 'onednn' does not support ", p, ": expected reference"));
}
