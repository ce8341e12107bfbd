// Plans that are timed for real: all ranks choose the same, and the fastest.
#include "catch.hpp"
#include "support/cache_folder.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/flatten.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/plan/cluster.hpp>
#include <lamina/train/choose_plan.hpp>
#include <lamina/train/detail/take_turns.hpp>

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
  CHECK(chosen.timed[0].splits() == chosen.training.splits);
  int data_plans = 0;
  double data_takes = 0;
  for (std::size_t i = 0; i < chosen.timed.size(); ++i) {
    const TimedPlan& plan = chosen.timed[i];
    CHECK((plan.seconds.size() == 4 || plan.seconds.size() == 2));
    CHECK(plan.seconds == by_rank[1].timed.at(i).seconds);  // of the slower one
    CHECK(plan.prediction.seconds > 0);
    data_plans += plan.name == "data";
    if (plan.name == "data") data_takes = plan.median;
    const auto same = std::ranges::count(chosen.timed, plan.splits(), &TimedPlan::splits);
    CHECK(same == 1);
  }
  CHECK(data_plans == 1);
  // The fastest, unless it is faster than data by less than the margin.
  const double least = std::ranges::min(chosen.timed, {}, &TimedPlan::median).median;
  if (chosen.timed[0].name == "data")
    CHECK(0.98 * data_takes <= least);
  else
    CHECK(chosen.timed[0].median == least);
  // What it says as a plan is what it takes, with why, and rank 1 knows all of it to the last
  // digit.
  const Network net = small();
  CHECK(splits_of(decide(chosen.plan, net, 16)) == chosen.training.splits);
  REQUIRE(chosen.plan.timed.size() == chosen.timed.size());
  for (std::size_t i = 0; i < chosen.timed.size(); ++i) {
    CHECK(chosen.plan.timed[i].name == chosen.timed[i].name);
    CHECK(chosen.plan.timed[i].predicted == chosen.timed[i].prediction.seconds);
    CHECK(chosen.plan.timed[i].median == chosen.timed[i].median);
  }
  CHECK(by_rank[0].plan.prediction->cluster == "cpu-1g");
  CHECK(by_rank[0].plan.prediction->batch == 16);
  CHECK(plan_json(by_rank[0].plan) == plan_json(by_rank[1].plan));
  const FoundPlan found =
      find_plan(net, {.batch = 16}, {.momentum = 0.9}, ready_cluster("cpu-1g").of(2), 2);
  for (const PredictedPlan& other : found.others)
    for (const TimedPlan& plan : chosen.timed)
      if (plan.name == other.name)
        for (std::size_t v = 0; v < net.graph().size(); ++v)
          CHECK(plan.prediction.layers.at(v).passes.total() ==
                plan_prediction(*found.model, other.step).layers.at(v).passes.total());
}

TEST_CASE("who takes more than twice as long has no further turns") {
  std::vector<TimedPlan> plans(4);
  const std::vector<std::vector<double>> took = {
      {9, 8, 1, 1}, {3, 3, 2, 4}, {4, 9, 6.1, 6.1}, {6.5, 5, 9, 5.9}};
  std::vector<int> turns(4);
  detail::timed_plans::take_turns(plans, 2, [&](TimedPlan& plan) {
    const std::size_t i = std::size_t(&plan - plans.data());
    for (int k = 0; k < 2; ++k) plan.seconds.push_back(took[i][std::size_t(2 * turns[i] + k)]);
    ++turns[i];
  });
  CHECK(turns == std::vector{1, 2, 2, 2});  // 8 is more than twice 3; 4 and 5 are not
  CHECK(plans[0].median == 8.5);
  CHECK(plans[1].median == 3);
}

TEST_CASE("a turn has one step where steps are long") {
  const auto data = synthetic({.limit = 64, .channels = 1, .height = 6, .width = 6});
  run_ranks(2, [&](World& world) {
    const ChosenPlan chosen = choose_plan(
        small(), *data, world, SGD{.momentum = 0.9}, {.batch = 16, .backend = "reference"},
        ready_cluster("cpu-1g").of(2), {.rounds = 2, .steps = 5, .seconds = 0});
    std::size_t most = 0;
    for (const TimedPlan& plan : chosen.timed) most = std::max(most, plan.seconds.size());
    check(most == 2, "expected a step per round");
  });
}

TEST_CASE("some of the ranks time plans for themselves, and all choose them") {
  const int some = GENERATE(1, 2);
  const auto data = synthetic({.limit = 64, .channels = 1, .height = 6, .width = 6});
  Cluster cluster = ready_cluster("cpu-1g").of(3);
  std::vector<ChosenPlan> by_rank(3);
  const auto choose = [&](int ranks) {
    run_ranks(3, [&](World& world) {
      by_rank[std::size_t(world.rank())] = choose_plan(
          small(), *data, world, SGD{.momentum = 0.9}, {.batch = 16, .backend = "reference"},
          cluster, {.ranks = ranks, .rounds = 1, .steps = 2});
    });
  };
  choose(some);
  for (const ChosenPlan& mine : by_rank) {
    CHECK(plan_json(mine.plan) == plan_json(by_rank[0].plan));
    CHECK(mine.training.splits == by_rank[0].training.splits);
    CHECK(mine.timed[0].seconds == by_rank[0].timed[0].seconds);
  }
  CHECK(by_rank[0].plan.ranks == some);
  CHECK(by_rank[0].training.splits[0].ways() == some);
  CHECK(by_rank[0].timed[0].seconds.size() == 2);
  // It runs there.
  run_ranks(some, [&](World& world) {
    Trainer trainer(small(), world, SGD{.momentum = 0.9}, by_rank[0].training);
    Loader loader = trainer.loader(*data, true);
    CHECK(trainer.step(loader, 1).loss > 0);
  });
  CHECK_THROWS_WITH(choose(4), ContainsSubstring("a plan for 4 ranks: there are 3"));
  cluster.nodes[0].device.memory = 10;
  CHECK_THROWS_WITH(choose(some), ContainsSubstring("no plan fits into memory"));
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

TEST_CASE("one call measures, searches and times, on samples that it makes up") {
  const lamina::test::CacheFolder cache;
  Network net = small();
  net.add<SoftmaxCrossEntropy>({}, "loss");
  Cluster cluster = ready_cluster("cpu-1g").of(2);
  const auto all = [&](double memory, std::int64_t batch) {
    cluster.nodes[0].device.memory = memory;
    std::vector<ChosenPlan> by_rank(2);
    std::vector<double> losses(2);
    run_ranks(2, [&](World& world) {
      const auto r = std::size_t(world.rank());
      by_rank[r] = plan(net, world, SGD{.momentum = 0.9}, {.batch = batch, .backend = "reference"},
                        cluster, {.plans = 1, .rounds = 1, .steps = 1});
      Trainer trainer(net, world, SGD{.momentum = 0.9}, by_rank[r].training);
      const auto data = made_up_samples(net, batch);
      Loader loader = trainer.loader(*data, true);
      losses[r] = trainer.step(loader.next(), loader.batches(), 1).loss;
    });
    CHECK((losses[0] > 0 && losses[0] == losses[1]));
    CHECK(plan_json(by_rank[0].plan) == plan_json(by_rank[1].plan));
    return by_rank[0];
  };
  const ChosenPlan chosen = all(1e9, 16);
  CHECK(chosen.calibration.measured > 0);
  CHECK(chosen.calibration.settled);
  CHECK(chosen.bought.empty());
  CHECK(chosen.plan.prediction->layers.size() == net.graph().size());
  // The cache has what it measured.
  CHECK(all(1e9, 16).calibration.measured == 0);
  const double needs =
      double(find_plan(net, {.batch = 1024}, {.momentum = 0.9}, cluster, 2).best.memory.total());
  const ChosenPlan small_memory = all(0.5 * needs, 1024);
  CHECK_FALSE(small_memory.bought.empty());
  CHECK(small_memory.training.micro_batch > 0);
  CHECK(small_memory.plan.prediction->batch == 1024);
}

TEST_CASE("made-up samples are as the network takes them") {
  Network net({.c = 2, .h = 3, .w = 4});
  net.add<Linear>({.features = 3}, "fc");
  CHECK_THROWS_WITH(made_up_samples(net, 8),
                    ContainsSubstring("the network ends in fc: expected a loss"));
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const auto data = made_up_samples(net, 8);
  CHECK(data->size() == 8);
  CHECK(data->classes() == 3);
  CHECK(data->shape() == Shape{1, 2, 3, 4});
  CHECK(data->labels_samples());
  Sample sample;
  data->read(4, sample);
  CHECK(sample.label == 1);
  CHECK(sample.planes.size() == 24);
  CHECK(std::ranges::count(sample.planes, sample.planes[0]) == 1);
}
