// The largest micro-batch that fits into memory: found without placing anything, and against what
// real placing takes for every divisor of the batch.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/error_of.hpp"
#include "support/random_plans.hpp"

#include <lamina/comm/memory_per_rank.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/train/micro_batch.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

using namespace lamina;
using lamina::test::error_of, lamina::test::thin;

namespace {

/// Layers without a loss; most of what it takes are activations, or weights.
Network small(bool weights) {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "a");
  net.add<BatchNorm>({}, "norm");
  net.add<ReLU>({}, "relu");
  net.add<MaxPool2D>({.window = 2}, "pool");
  net.add<Linear>({.features = weights ? 512 : 16}, "b");
  net.add<Linear>({.features = 4}, "c");
  return net;
}

struct Case {
  const char* name;
  int ranks;
  bool weights;
  TrainerOptions options;
};

std::vector<Case> cases() {
  TrainerOptions plain{.batch = 24, .backend = "reference"};
  TrainerOptions sharded = plain, narrow = plain;
  sharded.shard_optimizer = true, sharded.fuse = true, sharded.batch = 60;
  narrow.dtype = DType::bf16, narrow.frozen = {"a.*"};
  return {{"plain", 1, false, plain},
          {"weights", 1, true, plain},
          {"three ranks", 3, false, plain},
          {"sharded", 2, true, sharded},
          {"narrow", 2, false, narrow}};
}

/// Bytes that a trainer takes on the fullest rank, with the images and labels that its loaders
/// hold; nothing where it cannot be made.
std::optional<double> taken(const Network& net, const TrainerOptions& options, int ranks) {
  std::vector<double> all(std::size_t(ranks), 0.0);
  const std::string error = error_of([&] {
    run_ranks(ranks, [&](World& world) {
      const Trainer trainer(net, world, Adam{}, options);
      const std::int64_t at_once = options.micro_batch > 0 ? options.micro_batch : options.batch;
      const std::int64_t evaluated =
          options.evaluation_batch > 0 ? options.evaluation_batch : at_once;
      const std::int64_t mine = part(at_once, ranks, world.rank()).size;
      const std::int64_t rows =
          mine * (options.batch / at_once) + part(evaluated, ranks, world.rank()).size;
      all[std::size_t(world.rank())] =
          double(trainer.memory().total()) + 3.0 * double(rows * (net.sample().sample() * 4 + 4));
    });
  });
  if (!error.empty()) return std::nullopt;
  return std::ranges::max(all);
}

}  // namespace

TEST_CASE("the largest micro-batch is the largest divisor that fits", "[host]") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Network net = small(c.weights);
    const std::int64_t batch = c.options.batch;
    std::map<std::int64_t, double> takes;  // by divisor
    for (std::int64_t d = 1; d <= batch; ++d) {
      if (batch % d != 0) continue;
      TrainerOptions options = c.options;
      options.micro_batch = d;
      if (const auto bytes = taken(net, options, c.ranks)) takes[d] = *bytes;
    }
    REQUIRE(takes.begin()->first == c.ranks);
    REQUIRE(takes.rbegin()->first == batch);
    double least = takes.begin()->second;
    for (const auto& [d, bytes] : takes) least = std::min(least, bytes);

    for (const double reserve : {0.0, 0.25})
      for (const auto& [of, bytes] : takes)
        for (const double room : {bytes - 1, bytes, bytes + 1}) {
          std::int64_t wanted = 0;
          for (const auto& [d, needed] : takes)
            if (needed <= room) wanted = d;
          const auto find = [&] {
            return largest_micro_batch(net, c.options, Optimizer(Adam{}).rule(), c.ranks,
                                       {.memory = room / (1 - reserve), .reserve = reserve});
          };
          CAPTURE(of, room, wanted);
          if (wanted == 0) {
            CHECK_THROWS_WITH(find(), ContainsSubstring("no micro-batch fits into memory"));
            continue;
          }
          const MicroBatch found = find();
          CHECK(found.samples == wanted);
          CHECK(found.bytes == takes[wanted]);
          CHECK(found.memory == room / (1 - reserve));
        }
  }
}

TEST_CASE("a network that evaluates another batch counts, too", "[host]") {
  const Network net = small(false);
  TrainerOptions options{.batch = 24, .micro_batch = 6, .backend = "reference"};
  const double without = predict_training(net, options, Optimizer(Adam{}).rule(), 2);
  options.evaluation_batch = 18;
  const double with = predict_training(net, options, Optimizer(Adam{}).rule(), 2);
  CHECK(with > 1.1 * without);
  // But for copies of running statistics.
  CHECK(with == Approx(taken(net, options, 2).value()).epsilon(2e-3));
}

TEST_CASE("the whole batch may fit where its half does not, since nothing adds up") {
  const Network net = small(true);
  const TrainerOptions options{.batch = 4, .backend = "reference"};
  const auto bytes = [&](std::int64_t micro_batch) {
    TrainerOptions o = options;
    o.micro_batch = micro_batch;
    return predict_training(net, o, {}, 1);
  };
  REQUIRE(bytes(4) < bytes(2));
  const MicroBatch found =
      largest_micro_batch(net, options, {}, 1, {.memory = bytes(4), .reserve = 0});
  CHECK(found.samples == 4);
}

TEST_CASE("where no micro-batch fits, a line says what the smallest takes and what there is") {
  const Network net = small(false);
  const TrainerOptions options{.batch = 24, .backend = "reference"};
  const auto error = [&](int ranks, MicroBatchOptions within) {
    return error_of([&] { largest_micro_batch(net, options, {}, ranks, within); });
  };
  TrainerOptions smallest = options;
  smallest.micro_batch = 3;
  const double takes = predict_training(net, smallest, {}, 3);
  CHECK(error(3, {.memory = 1e5}) ==
        text("no micro-batch fits into memory: the smallest, 3 of 24 samples, takes ",
             in_bytes(takes),
             " of a rank's 0.1 MB, of which 20 % are kept in reserve; more ranks, ",
             "a sharded optimizer or recomputation would help"));
  CHECK_THAT(error(1, {}), ContainsSubstring("there must be some memory, got 0 bytes"));
  CHECK_THAT(error(1, {.memory = 1e9, .reserve = 1}), ContainsSubstring("the reserve must be"));
  CHECK_THAT(error(25, {.memory = 1e9}),
             ContainsSubstring("a global batch of 24 is smaller than the 25 ranks"));
}

TEST_CASE("the splits may depend on the micro-batch, and those without any are not taken") {
  const Network net = thin("lenet");
  constexpr std::int64_t batch = 16;
  std::set<std::int64_t> asked;
  const auto with = [&](std::int64_t n) {
    asked.insert(n);
    check(n != 8, "not eight");
    TrainerOptions o{.batch = batch, .micro_batch = n, .backend = "reference"};
    o.splits = splits_of(decide(built_in_plan("spatial", net, n, 2), net, n));
    return o;
  };
  const double most = predict_training(net, with(8 - 4), {}, 2);
  asked.clear();
  const MicroBatch found =
      largest_micro_batch(net, batch, with, {}, 2, {.memory = most, .reserve = 0});
  CHECK(found.samples == 4);
  CHECK(found.bytes == most);
  CHECK(asked == std::set<std::int64_t>{4, 8, 16});
}

TEST_CASE("nothing is allocated to find the largest micro-batch") {
  if (!test::counts_allocations()) return;
  const Network net = make_model("resnet50");
  const test::TensorBytes before;
  const MicroBatch found =
      largest_micro_batch(net, {.batch = 1 << 16}, {.momentum = 0.9}, 8, {.memory = 1e11});
  CHECK(before.bytes() == 0);
  CHECK(found.samples < 1 << 16);
  CHECK(found.bytes <= 0.8e11);
}

TEST_CASE("ranks of one host share its memory, and find the same micro-batch", "[host]") {
  const Network net = small(false);
  const TrainerOptions options{.batch = 24, .backend = "reference"};
  std::vector<std::int64_t> found(2);
  std::vector<double> memory(2);
  run_ranks(2, [&](World& world) {
    const auto rank = std::size_t(world.rank());
    const double mine = memory_per_rank(world, host_memory(), world.rank() == 0 ? 8e9 : 6e9);
    check(mine == 3e9, "the least counts, got ", mine);
    memory[rank] = memory_per_rank(world, host_memory());
    found[rank] = largest_micro_batch(net, world, Adam{}, options).samples;
    const MicroBatch tight = largest_micro_batch(net, world, Adam{}, options, {.memory = 4e5});
    check(tight.samples < 24 && tight.samples >= 2, "got ", tight.samples);
  });
  CHECK(memory[0] == memory[1]);
  CHECK(memory[0] <= double(host_memory().total_bytes()) / 2);
  CHECK(found == std::vector<std::int64_t>{24, 24});
}
