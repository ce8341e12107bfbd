// Training on ranks that compute with unlike back ends: the same weights as with one of them, but
// for rounding.
#include "catch.hpp"
#include "support/error_of.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <chrono>
#include <filesystem>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Run {
  int ranks = 2;
  bool unlike = true;
  TrainerOptions options = {};
  std::vector<Change> changes = {};
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9};
};

struct Result {
  std::vector<double> losses, weights;         ///< of rank 0
  std::vector<std::vector<double>> kept = {};  ///< what all ranks that train must have alike
  std::int64_t samples = 0;                    ///< that were evaluated
  int resizes = 0;
};

/// As many as ranks may take to make themselves ready.
std::int64_t steps_of(const Run& run) { return run.changes.empty() ? 16 : 40; }

TrainerOptions options_of(const Run& run, int rank) {
  TrainerOptions o = run.options;
  o.batch = 24;
  o.backend = run.unlike && rank % 2 ? "onednn" : "reference";
  return o;
}

/// Its weights, and the master weights where they are rounded.
std::vector<double> with_masters(const PlacedNetwork& net) {
  std::vector<double> all = weights(net);
  for (const Bucket& bucket : net.buckets()) {
    if (!bucket.master()) continue;
    const Tensor master(bucket.master().form());
    copy_bytes(bucket.master(), master);
    for (const double v : numbers(master)) all.push_back(v);
  }
  return all;
}

Result train(const Run& run) {
  std::mutex mutex;
  const auto data = small_data(), validation = small_data(30, false);
  Result result;
  run_ranks(run.ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(true), world, run.optimizer, options_of(run, world.rank()));
    Changes changes{trainer, run.changes};
    FitOptions fit{.steps = steps_of(run), .validation = validation.get()};
    fit.resize = std::ref(changes);
    fit.on_step = [&](const StepResult& r) {
      if (world.rank() == 0) result.losses.push_back(r.loss);
      // Steps of this network are over before anybody could get ready.
      const bool under_way = world.rank() == 0 && result.resizes < changes.asked;
      if (under_way) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    };
    fit.on_resize = [&](const Resize&) { result.resizes += world.rank() == 0; };
    for (const Epoch& epoch : trainer.fit(*data, fit))
      if (world.rank() == 0 && epoch.validation) result.samples = epoch.validation->samples;
    if (!trainer.active()) return;
    if (run.options.workers > 0) trainer.network().average_kept(trainer.stream());
    if (world.rank() == 0) result.weights = weights(trainer.network());
    const std::lock_guard lock(mutex);
    result.kept.push_back(with_masters(trainer.network()));
  });
  return result;
}

/// The largest difference of the losses, and of the weights relative to the largest of them.
double difference(const Result& a, const Result& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  CHECK(a.resizes == b.resizes);
  REQUIRE(a.weights.size() == b.weights.size());
  CHECK(a.samples == b.samples);
  double largest = 0, scale = 0, losses = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    losses = std::max(losses, std::abs(a.losses[i] - b.losses[i]));
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    largest = std::max(largest, std::abs(a.weights[i] - b.weights[i]));
    scale = std::max(scale, std::abs(a.weights[i]));
  }
  return std::max(losses, largest / scale);
}

void check_one(Run run, double tolerance = 1e-4) {
  run.unlike = false;
  const Result one = train(run);
  run.unlike = true;
  const Result unlike = train(run);
  // All ranks have the same: where layers are split, of what is not.
  if (run.options.splits.empty() && !run.options.splits_for)
    for (const auto& kept : unlike.kept) CHECK(kept == unlike.kept[0]);
  REQUIRE(std::int64_t(one.losses.size()) == steps_of(run));
  REQUIRE(one.samples == 30);
  REQUIRE(one.resizes == int(run.changes.size()));
  CHECK(difference(one, unlike) < tolerance);
}

std::vector<Split> by_channel(int ranks) {
  std::vector<Split> splits;
  const Network net = small_network(true);
  for (const Network::Vertex& v : net.graph()) {
    const bool cut = v.name == "b" || v.name == "c";
    splits.push_back(cut ? Split{.channel = ranks} : Split{.batch = ranks});
  }
  return splits;
}

}  // namespace

TEST_CASE("ranks of unlike back ends train what those of one do") {
  if (!has_unlike_backends()) return;
  const int ranks = GENERATE(2, 3);
  const bool fuse = GENERATE(false, true);
  CAPTURE(ranks, fuse);
  check_one({.ranks = ranks, .options = {.fuse = fuse}});
}

TEST_CASE("ranks of unlike back ends shard an optimizer, and take micro-batches") {
  if (!has_unlike_backends()) return;
  check_one({.options = {.micro_batch = 12, .shard_optimizer = true}, .optimizer = AdamW{}}, 1e-3);
}

TEST_CASE("ranks of unlike back ends train in bf16") {
  if (!has_unlike_backends()) return;
  const int workers = GENERATE(0, 4);
  CAPTURE(workers);
  check_one({.options = {.workers = workers, .dtype = DType::bf16}}, 0.05);
  if (workers == 0) return;
  check_one({.ranks = 3,
             .options = {.workers = 6, .active = 1, .dtype = DType::bf16},
             .changes = {{2, 3}, {20, 2}}},
            0.1);
}

TEST_CASE("ranks of unlike back ends split layers") {
  if (!has_unlike_backends()) return;
  check_one({.options = {.splits = by_channel(2)}});
}

TEST_CASE("workers run on unlike back ends, which come and go") {
  if (!has_unlike_backends()) return;
  check_one({.ranks = 2, .options = {.workers = 4}});
  check_one({.ranks = 3, .options = {.workers = 6, .balance = {3, 2, 1}}});
  check_one({.ranks = 4, .options = {.workers = 4, .active = 1}, .changes = {{2, 4}, {20, 2}}});
}

TEST_CASE("split layers go over to ranks of unlike back ends and back") {
  if (!has_unlike_backends()) return;
  check_one({.ranks = 3,
             .options = {.active = 1, .splits_for = by_channel},
             .changes = {{2, 3}, {20, 2}}});
}

TEST_CASE("a training goes on with unlike back ends from what one saved, and the other way round") {
  if (!has_unlike_backends()) return;
  const std::string file =
      (std::filesystem::temp_directory_path() / "lamina_train_unlike.safetensors").string();
  const bool first = GENERATE(false, true);
  CAPTURE(first);
  const auto data = small_data();
  const auto steps = [&](bool unlike, std::int64_t from, std::int64_t to) {
    std::vector<double> all;
    run_ranks(2, [&](World& world) {
      Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9},
                      options_of({.unlike = unlike}, world.rank()));
      if (from > 0) trainer.resume(file);
      const std::vector<double> found = losses(trainer, *data, to);
      if (from == 0) trainer.save(file);
      if (world.rank() == 0) all = weights(trainer.network());
    });
    return all;
  };
  const std::vector<double> whole = steps(false, 0, 8);
  steps(first, 0, 4);
  const std::vector<double> parts = steps(!first, 4, 8);
  std::filesystem::remove(file);
  REQUIRE(parts.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i)
    if (std::abs(parts[i] - whole[i]) > 1e-4) FAIL_CHECK(i << ": " << parts[i] << whole[i]);
}

TEST_CASE("what goes by the times of kernels is refused on unlike back ends") {
  const auto ask = [](World& world) {
    expect_one_backend("plan", world.comm(), world.rank() == 2 ? "onednn" : "reference",
                       DType::f32);
  };
  CHECK(error_of([&] { run_ranks(3, ask); }) ==
        "plan: expected one back end on all ranks, got reference on rank 0, but onednn on rank 2");
}

// A host's rank would wait for one that no longer asks it.
TEST_CASE("unlike memories are refused where a device carries collectives by itself") {
  if (!over_device()) return;
  const int workers = GENERATE(0, 2);
  const auto train = [&](World& world) {
    Run run;
    run.options.workers = workers;
    Trainer(small_network(true), world, SGD{.rate = 0.1}, options_of(run, world.rank()));
  };
  CHECK_THAT(error_of([&] { run_ranks(2, train); }),
             ContainsSubstring("ranks compute in unlike memories, which"));
}
