// What a network takes is known without ranks, back end or buffers.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/random_plans.hpp"

#include <lamina/comm/threads.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::int64_t batch = 8;

struct Planned {
  std::string name;
  std::vector<Split> splits;
};

/// All built-in plans, and some drawn at random.
std::vector<Planned> plans_for(const Network& net, int ranks, std::uint64_t seed) {
  std::vector<Planned> all;
  for (const std::string_view name : plan_names())
    all.push_back(
        {std::string(name), splits_of(decide(built_in_plan(name, net, batch, ranks), net, batch))});
  if (ranks == 4) {
    const Split wish{.batch = 2, .height = 2, .shares = {.height = {3, 1}}};
    all.push_back({"uneven", {{.batch = 4, .shares = {.batch = {3, 1, 2, 2}}}}});
    for (const auto& v : net.graph())
      if (v.layer)
        all.back().splits.push_back(
            why_illegal(*v.layer, net.input_shapes(v, batch), wish, ranks).empty()
                ? wish
                : input_split(batch, ranks));
  }
  std::uint64_t draw = 0;
  for (int i = 0; i < 4 && ranks > 1; ++i)
    all.push_back({text("random ", i), random_plan(net, ranks, batch, Random(seed), draw)});
  return all;
}

/// What the ranks themselves say once the network is placed on them.
std::vector<Memory> placed_memory(const Network& net, const PlaceOptions& options, int ranks,
                                  const Optimizer& optimizer) {
  std::vector<Memory> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    PlaceOptions mine = options;
    mine.backend = make_backend("reference", options.dtype), mine.ranks = world;
    all[std::size_t(world.rank())] = optimizer.memory(PlacedNetwork(net, mine));
  });
  return all;
}

void check_same(const std::vector<Memory>& a, const std::vector<Memory>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    INFO("rank " << r);
    CHECK(a[r].parameters == b[r].parameters);
    CHECK(a[r].gradients == b[r].gradients);
    CHECK(a[r].optimizer == b[r].optimizer);
    CHECK(a[r].activations == b[r].activations);
    CHECK(a[r].workspace == b[r].workspace);
    CHECK(a[r].messages == b[r].messages);
  }
}

}  // namespace

TEST_CASE("predicted memory is what placing takes, under every plan", "[splits]") {
  const std::string_view model = GENERATE("lenet", "resnet20", "alexnet");
  const Network net = thin(model);
  for (const int ranks : {1, 2, 4})
    for (const Planned& plan : plans_for(net, ranks, 5)) {
      INFO(model << " on " << ranks << " ranks, " << plan.name << "\n"
                 << describe(net, plan.splits));
      const PlaceOptions options{.batch = batch, .splits = plan.splits};
      const Optimizer adam = Adam{};
      const auto predicted = predict_memory(net, options, ranks, adam.rule());
      check_same(predicted, placed_memory(net, options, ranks, adam));
      CHECK(predicted[0].optimizer == 2 * predicted[0].gradients);
    }
}

TEST_CASE("predicted memory knows how else a network is placed", "[splits]") {
  const Network net = thin("resnet20");
  const Optimizer sgd = SGD{.momentum = 0.9};
  const auto changed = [&](auto&& change) {
    PlaceOptions o{.batch = batch};
    change(o);
    const auto predicted = predict_memory(net, o, 2, sgd.rule());
    check_same(predicted, placed_memory(net, o, 2, sgd));
    return predicted[0];
  };
  const Memory plain = changed([](PlaceOptions&) {});
  const Memory wide = changed([](PlaceOptions& o) { o.dtype = DType::f64; });
  CHECK(wide.activations > 1.9 * double(plain.activations));
  const Memory half = changed([](PlaceOptions& o) { o.dtype = DType::bf16; });
  CHECK(half.activations < 0.6 * double(plain.activations));
  CHECK(half.gradients >= plain.gradients);
  CHECK(half.optimizer > 1.9 * double(plain.optimizer));  // with master weights
  changed([](PlaceOptions& o) {
    o.dtype = DType::bf16, o.dtype.gradients = DType::bf16, o.shard_optimizer = true;
    o.micro_batches = 2, o.frozen = {"*.weight"};
  });
  const Memory again =
      changed([&](PlaceOptions& o) { o.recompute.assign(net.graph().size(), true); });
  CHECK(again.activations != plain.activations);
  const Memory shard = changed([](PlaceOptions& o) { o.shard_optimizer = true; });
  CHECK(shard.optimizer < plain.optimizer);
  const Memory parts = changed([](PlaceOptions& o) { o.micro_batches = 2; });
  CHECK(parts.gradients == 2 * plain.gradients);
  CHECK(changed([](PlaceOptions& o) { o.training = false; }).gradients == 0);
}

TEST_CASE("a prediction allocates no buffers and needs no ranks") {
  if (!counts_allocations()) return;
  const Network net = make_model("vgg16");  // would take gigabytes
  const Allocations seen;
  const auto predicted = predict_memory(net, {.batch = 256}, 4);
  CHECK(seen.largest() < std::size_t(1) << 20);
  REQUIRE(predicted.size() == 4);
  CHECK(predicted[0].activations > std::size_t(3) << 30);
  CHECK(predicted[0].parameters >= std::size_t(4) * 138357544);
}

TEST_CASE("what cannot be placed is not predicted either") {
  const Network net = thin("lenet");
  CHECK_THROWS_WITH(predict_memory(net, {.batch = 8}, 0),
                    "the number of ranks must be positive, got 0");
  CHECK_THROWS_WITH(predict_memory(net, {.batch = 1}, 2),
                    ContainsSubstring("a global batch of 1 is smaller than the 2 ranks"));
  const auto kernel =
      planning_backend()->conv({.channels = 2, .kernel = 3}, {{1, 2, 5, 5}, DType::f32, {}});
  CHECK(kernel->workspace == 4 * 18 * 9);
  const Tensor x({1, 2, 5, 5}, DType::f32, planning_backend()->memory());
  CHECK_THROWS_WITH(copy_bytes(x, x),
                    "a network that was placed for planning has no memory to run in");
}
