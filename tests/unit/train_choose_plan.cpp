// Plans that are timed for real: all ranks choose the same, and the fastest.
#include "catch.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/flatten.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/plan/cluster.hpp>
#include <lamina/train/choose_plan.hpp>

#include <algorithm>

using namespace lamina;

namespace {

Network small() {
  Network net({.c = 1, .h = 6, .w = 6});
  net.add<Flatten>({}, "flatten");
  net.add<Linear>({.features = 24}, "a");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 10}, "b");
  return net;
}

}  // namespace

TEST_CASE("ranks time plans and choose the same one") {
  std::vector<ChosenPlan> by_rank(2);
  const auto data = synthetic({.limit = 64, .channels = 1, .height = 6, .width = 6});
  run_ranks(2, [&](World& world) {
    by_rank[std::size_t(world.rank())] = choose_plan(
        small(), *data, world, SGD{.momentum = 0.9}, {.batch = 16, .backend = "reference"},
        ready_cluster("cpu-1g").of(2), {.rounds = 2, .steps = 2});
  });
  const ChosenPlan& chosen = by_rank[0];
  REQUIRE(chosen.timed.size() >= 2);
  CHECK(chosen.timed.size() <= 4);
  CHECK(by_rank[1].training.splits == chosen.training.splits);
  CHECK(chosen.timed[0].splits == chosen.training.splits);
  int data_plans = 0;
  double data_takes = 0;
  for (std::size_t i = 0; i < chosen.timed.size(); ++i) {
    const TimedPlan& plan = chosen.timed[i];
    CHECK(plan.seconds.size() == 4);
    CHECK(plan.seconds == by_rank[1].timed.at(i).seconds);  // of the slower one
    CHECK(plan.predicted > 0);
    data_plans += plan.name == "data";
    if (plan.name == "data") data_takes = plan.median;
    const auto same = std::ranges::count(chosen.timed, plan.splits, &TimedPlan::splits);
    CHECK(same == 1);
  }
  CHECK(data_plans == 1);
  // The fastest, unless it is faster than data by less than the margin.
  const double least = std::ranges::min(chosen.timed, {}, &TimedPlan::median).median;
  if (chosen.timed[0].name == "data")
    CHECK(0.98 * data_takes <= least);
  else
    CHECK(chosen.timed[0].median == least);
  // What it says as a plan is what it takes.
  const Network net = small();
  CHECK(splits_of(decide(chosen.plan, net, 16)) == chosen.training.splits);
}

TEST_CASE("a choice is bought memory, and refused where there is none") {
  Cluster cluster = ready_cluster("cpu-1g").of(2);
  const auto data = synthetic({.limit = 1024, .channels = 1, .height = 6, .width = 6});
  const auto choose = [&](double bytes) {
    cluster.nodes[0].device.memory = bytes;
    ChosenPlan chosen;
    run_ranks(2, [&](World& world) {
      ChosenPlan mine = choose_plan(small(), *data, world, SGD{.momentum = 0.9},
                                    {.batch = 1024, .backend = "reference"}, cluster,
                                    {.plans = 1, .rounds = 1, .steps = 1});
      if (world.rank() == 0) chosen = std::move(mine);
    });
    return chosen;
  };
  const ChosenPlan roomy = choose(1e9);
  CHECK(roomy.training.micro_batch == 0);
  CHECK(roomy.bought.empty());
  const double all = double(
      find_plan(small(), {.batch = 1024}, {.momentum = 0.9}, cluster, 2).best.memory.total());
  CHECK(!choose(0.7 * all).bought.empty());
  CHECK_THROWS_WITH(choose(10), ContainsSubstring("no plan fits into memory"));
}
