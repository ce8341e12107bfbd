// What plans are taken where memory is short, and what is bought then: layers whose seconds a test
// says, by their split, and memory that is that of predict_memory().
#include "catch.hpp"
#include "support/clusters.hpp"

#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/predict.hpp>
#include <lamina/plan/detail/possible_plans.hpp>
#include <lamina/plan/find_plan.hpp>

#include <algorithm>

using namespace lamina;

namespace {

/// A layer that multiplies takes so long forward: cut by samples, or otherwise; what recomputes the
/// others takes next to nothing.
struct BySplit final : LayerTimes {
  BySplit(double batch, double other, double conv) : batch_(batch), other_(other), conv_(conv) {}
  LayerSeconds of(const Layer& layer, std::span<const Shape>, const Split& split, const Cost&,
                  const Precision&, const UpdateRule&) const override {
    if (!layer.multiplies()) return {.recompute = 0.01};
    const bool data = split == Split{.batch = split.batch};
    return {.forward = data ? batch_ : layer.type() == "Conv2D" ? conv_ : other_};
  }

 private:
  double batch_, other_, conv_;
};
std::shared_ptr<const LayerTimes> seconds(double batch, double other, double conv = 1) {
  return std::make_shared<BySplit>(batch, other, conv);
}

/// An all-gather takes 10 s, and all else that is sent next to nothing.
Cluster cluster_of(int devices, double memory) {
  Cluster c = test::slow_cluster(devices);
  c.nodes[0].device.memory = memory;
  c.across = {1e-9, 1e15};
  c.measured.push_back({Collective::all_gather, 2, 1, 1, 10});
  c.measured.push_back({Collective::all_gather, 2, 1, 1e12, 10});
  return c;
}

constexpr double plenty = 1e12;
const UpdateRule momentum{.momentum = 0.9}, adam{.kind = UpdateRule::Kind::adam};

/// Bytes of the rank that a placed network takes the most of.
double fullest(const Network& net, const PlaceOptions& options, int ranks, const UpdateRule& rule) {
  std::size_t most = 0;
  for (const Memory& m : predict_memory(net, options, ranks, rule))
    most = std::max(most, m.total());
  return double(most);
}

/// Parameters take nearly all of the memory, a quarter of them each layer.
Network linears() {
  Network net({.c = 256});
  for (int i = 0; i < 4; ++i) net.add<Linear>({.features = 256, .bias = false});
  net.add<SoftmaxCrossEntropy>({});
  return net;
}

/// A convolution before them: owt cuts them, filter cuts that, too.
Network mixed() {
  Network net({.c = 8, .h = 8, .w = 8});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1});
  for (int i = 0; i < 3; ++i) net.add<Linear>({.features = 512});
  net.add<SoftmaxCrossEntropy>({});
  return net;
}

/// Activations take most of it, and parameters enough for a sharded optimizer to matter.
Network convolutions() {
  Network net({.c = 32, .h = 16, .w = 16});
  for (int i = 0; i < 3; ++i) {
    net.add<Conv2D>({.channels = 32, .kernel = 3, .pad = 1});
    net.add<BatchNorm>({});
    net.add<ReLU>({});
  }
  return net;
}
std::vector<bool> without_weights(const Network& net) {
  std::vector<bool> marks;
  for (const auto& v : net.graph())
    marks.push_back(v.layer && (v.layer->type() == "BatchNorm" || v.layer->type() == "ReLU"));
  return marks;
}

/// Of convolutions(), data-parallel on two ranks.
double bytes_of(bool shards, bool recomputes, int micro_batches = 1) {
  const Network net = convolutions();
  PlaceOptions o{
      .batch = 16 / micro_batches, .shard_optimizer = shards, .micro_batches = micro_batches};
  if (recomputes) o.recompute = without_weights(net);
  return fullest(net, o, 2, adam);
}
/// Data-parallel is all that the search knows of.
FoundPlan find_data(double memory, PlaceOptions options = {}) {
  options.batch = 16;
  return find_plan(convolutions(), options, adam, cluster_of(2, memory), 2, {.most_splits = 1},
                   seconds(1, 1));
}

using Words = std::vector<std::string>;
const std::string recomputation = "recomputation of layers without weights";

}  // namespace

TEST_CASE("a plan fits into just the memory that it takes") {
  const Network net = linears();
  const double needed = fullest(net, {.batch = 2}, 1, momentum);
  const auto find = [&](double memory) {
    return find_plan(net, {.batch = 2}, momentum, cluster_of(1, memory), 1, {.buys = false});
  };
  CHECK(find(needed).best.fits);
  CHECK_THROWS_WITH(find(needed - 1), ContainsSubstring("no plan fits into memory"));
}

TEST_CASE("a plan takes as much memory as its fullest rank") {
  const Network net = mixed();
  const FoundPlan found = find_plan(net, {.batch = 2}, momentum, cluster_of(2, plenty), 2);
  bool differs = false;
  for (const PredictedPlan& plan : found.others) {
    const PlaceOptions options{.batch = 2, .splits = plan.splits};
    CHECK(double(plan.memory.total()) == fullest(net, options, 2, momentum));
    const Memory first = predict_memory(net, options, 2, momentum)[0];
    differs = differs || first.total() < plan.memory.total();
  }
  CHECK(differs);
}

TEST_CASE("where nothing fits, the least that any plan takes is named") {
  const Network net = linears();
  double least = plenty;
  for (const auto& [name, splits] : detail::possible_plans(net, 2, 2))
    least = std::min(least, fullest(net, {.batch = 2, .splits = splits}, 2, momentum));
  REQUIRE(least < 0.6 * fullest(net, {.batch = 2}, 2, momentum));
  // The search begins with data-parallel, which is the fastest; 1 kB is too little for any plan.
  CHECK_THROWS_WITH(
      find_plan(net, {.batch = 2}, momentum, cluster_of(2, 1e3), 2, {.buys = false}, seconds(1, 2)),
      format("no plan fits into memory: the one that takes the least takes %.1f MB of a device's "
             "0.0 MB; more devices, a smaller batch, a sharded optimizer, recomputation or "
             "micro-batches would help",
             least / 1e6));
}

TEST_CASE("what no plan is possible for hides none that fits") {
  // Data-parallel never fits. Looking for how few samples it would, one comes to a single sample,
  // of which batch norm has no variance.
  Network net({.c = 256});
  for (int i = 0; i < 4; ++i) net.add<Linear>({.features = 256, .bias = false});
  net.add<BatchNorm>({});
  const double limit = 0.6 * fullest(net, {.batch = 4}, 2, momentum);
  const FoundPlan found =
      find_plan(net, {.batch = 4}, momentum, cluster_of(2, limit), 2, {}, seconds(1, 2));
  CHECK(found.best.fits);
  CHECK_FALSE(found.data);
  CHECK_THROWS_WITH(find_plan(net, {.batch = 4}, momentum, cluster_of(2, 1e3), 2),
                    ContainsSubstring("no plan fits into memory"));
  CHECK_THROWS_WITH(find_plan(net, {.batch = 1}, momentum, cluster_of(2, plenty), 2),
                    ContainsSubstring("no plan is possible on 2 ranks with a batch of 1"));
}

TEST_CASE("no more is cut than must be to fit") {
  // Cutting a layer saves an eighth, and a second of its speed: two must be.
  const Network net = linears();
  const double limit = 0.8 * fullest(net, {.batch = 2}, 2, momentum);
  const FoundPlan found =
      find_plan(net, {.batch = 2}, momentum, cluster_of(2, limit), 2, {}, seconds(1, 2));
  CHECK(found.bought.empty());
  CHECK(found.best.step.seconds == Approx(1 + 1 + 2 + 2).epsilon(1e-3));
}

TEST_CASE("a search begins with the built-in plans that fit") {
  const Network net = linears();
  PlannerOptions planner{.searcher = "mcmc"};
  planner.search.seeded = false, planner.search.mcmc.iterations = 0;
  const FoundPlan found =
      find_plan(net, {.batch = 2}, momentum, cluster_of(2, plenty), 2, planner, seconds(5, 1));
  const auto shorter = [](const PredictedPlan& a, const PredictedPlan& b) {
    return a.step.seconds < b.step.seconds;
  };
  const PredictedPlan& best = *std::ranges::min_element(found.others, shorter);
  REQUIRE(best.step.seconds < 0.9 * found.others[0].step.seconds);
  CHECK(found.found.seconds == Approx(best.step.seconds));
  CHECK(found.best.splits == best.splits);
}

TEST_CASE("the best built-in plan that fits is taken where nothing better is found") {
  const Network net = mixed();
  const auto found = [&](double memory, double batch) {
    return find_plan(net, {.batch = 2}, momentum, cluster_of(2, memory), 2,
                     {.searcher = "fixed", .buys = false}, seconds(batch, 1, 7));
  };
  // `fixed` tries data-parallel alone: where that fits, but is slower than owt;
  const FoundPlan slow = found(plenty, 3);  // and filter cuts the convolution, too: 7 s
  CHECK(slow.others[0].name == "data");
  CHECK(slow.found.seconds == Approx(4 * 3).epsilon(1e-3));
  CHECK(slow.best.step.seconds == Approx(3 + 3 * 1).epsilon(1e-3));
  // and where it does not fit.
  const FoundPlan tight = found(0.6 * fullest(net, {.batch = 2}, 2, momentum), 0.5);
  CHECK(std::ranges::count(tight.others, true, &PredictedPlan::fits) >= 2);
  CHECK(!tight.others[0].fits);
  CHECK(tight.best.step.seconds == Approx(0.5 + 3 * 1).epsilon(1e-3));
  CHECK(tight.best.name == "auto");
}

TEST_CASE("of what makes a plan fit the fastest is bought") {
  const double none = bytes_of(false, false), sharded = bytes_of(true, false),
               recomputed = bytes_of(false, true), both = bytes_of(true, true);
  REQUIRE(both < recomputed);
  REQUIRE(recomputed < sharded);
  REQUIRE(sharded < none);
  CHECK(find_data(none).bought == Words{});
  // Both do; recomputing takes hundredths of a second, a gather takes 10 s.
  const FoundPlan first = find_data(sharded);
  CHECK(first.bought == Words{recomputation});
  CHECK(first.best.step.seconds < 4);
  const FoundPlan found = find_data(recomputed);
  CHECK(found.bought == Words{recomputation});
  CHECK(found.placing.recompute == without_weights(convolutions()));
  CHECK(!found.placing.shard_optimizer);
  CHECK(double(found.best.memory.total()) == recomputed);
  CHECK(find_data(both).bought == Words{"a sharded optimizer", recomputation});
}

TEST_CASE("as few micro-batches as will do are bought") {
  const double two = bytes_of(false, false, 2), four = bytes_of(false, false, 4);
  REQUIRE(two < bytes_of(true, true));
  REQUIRE(four < two);
  const FoundPlan found = find_data(two);
  CHECK(found.bought == Words{"2 micro-batches"});
  CHECK(found.placing.micro_batches == 2);
  CHECK(found.placing.batch == 8);

  // A batch that has no halves.
  const Network net = convolutions();
  const auto bytes = [&](int parts, const std::vector<bool>& recompute = {}) {
    const PlaceOptions o{.batch = 15 / parts, .recompute = recompute, .micro_batches = parts};
    return fullest(net, o, 1, adam);
  };
  REQUIRE(bytes(3) < bytes(1, without_weights(net)));
  REQUIRE(bytes(15) < bytes(3, without_weights(net)));
  for (const int parts : {3, 15})
    CHECK(find_plan(net, {.batch = 15}, adam, cluster_of(1, bytes(parts)), 1, {.most_splits = 1},
                    seconds(1, 1))
              .bought == Words{text(parts, " micro-batches")});
}

TEST_CASE("what was given is not bought") {
  CHECK(find_data(plenty, {.shard_optimizer = true, .micro_batches = 2}).bought == Words{});
  const FoundPlan found = find_data(bytes_of(true, true), {.shard_optimizer = true});
  CHECK(found.bought == Words{recomputation});
  CHECK(found.placing.shard_optimizer);

  std::vector<bool> given(convolutions().graph().size()), all = without_weights(convolutions());
  given[1] = true;  // a convolution
  REQUIRE(!all[1]);
  all[1] = true;
  const double needed = fullest(convolutions(), {.batch = 16, .recompute = all}, 2, adam);
  const FoundPlan more = find_data(needed, {.recompute = given});
  CHECK(more.bought == Words{recomputation});
  CHECK(more.placing.recompute == all);
}

TEST_CASE("the plan's file says whether the optimizer is sharded") {
  for (const bool shards : {false, true})
    CHECK(plan_of(find_data(plenty, {.shard_optimizer = shards}), "").shard_optimizer == shards);
}

TEST_CASE("data-parallel in micro-batches wins over what fits without, but slowly") {
  Network net({.c = 64});
  for (int i = 0; i < 4; ++i) {
    net.add<Linear>({.features = 256});
    net.add<BatchNorm>({});
    net.add<ReLU>({});
  }
  net.add<SoftmaxCrossEntropy>({});
  const auto data = [&](int parts) {
    return fullest(net,
                   {.batch = 512 / parts,
                    .recompute = without_weights(net),
                    .shard_optimizer = true,
                    .micro_batches = parts},
                   2, adam);
  };
  REQUIRE(data(2) < data(1));
  const auto find = [&](double other) {
    return find_plan(net, {.batch = 512}, adam, cluster_of(2, data(2)), 2, {}, seconds(1, other));
  };
  CHECK(find(1).placing.micro_batches == 1);  // some layer is cut
  const FoundPlan found = find(1000);
  REQUIRE(found.data.has_value());
  CHECK(found.data->plan.step.seconds < 100);
  CHECK(found.best.step.seconds <= found.data->plan.step.seconds);
  CHECK(found.placing.micro_batches == 2);
  CHECK(found.bought == found.data->bought);
}
