// Plans that are searched: never slower than the built-in ones, within memory, and as published.
#include "catch.hpp"

#include <lamina/network/models.hpp>
#include <lamina/network/predict.hpp>
#include <lamina/plan/find_plan.hpp>

#include <algorithm>
#include <limits>
#include <utility>

using namespace lamina;

namespace {

Cluster with_memory(Cluster cluster, double bytes) {
  for (Nodes& nodes : cluster.nodes) nodes.device.memory = bytes;
  return cluster;
}

const UpdateRule momentum{.momentum = 0.9};

}  // namespace

TEST_CASE("a plan that was found is no slower than any built-in one, and so is its file") {
  for (const char* name : {"lenet", "alexnet", "resnet20"})
    for (const char* cluster : {"cpu-1g", "v100-100g"}) {
      INFO(name << " on " << cluster);
      const Network net = make_model(name);
      const FoundPlan found =
          find_plan(net, {.batch = 64}, momentum, ready_cluster(cluster).of(4), 4);
      REQUIRE(!found.others.empty());
      for (const PredictedPlan& other : found.others)
        CHECK(found.best.step.seconds <= other.step.seconds);
      CHECK(found.best.fits);
      CHECK(found.bought.empty());
      const Plan plan = plan_of(found, name);
      CHECK(splits_of(decide(plan, net, 64)) == found.best.splits);
    }
}

TEST_CASE("published patterns come out") {
  // Krizhevsky, "One weird trick", 2014: linear layers by columns and rows in turns.
  const Network alexnet = make_model("alexnet");
  const FoundPlan found =
      find_plan(alexnet, {.batch = 256}, momentum, ready_cluster("v100-100g").of(8), 8);
  std::vector<Split> linear;
  for (std::size_t v = 1; v < alexnet.graph().size(); ++v)
    if (const auto& layer = *alexnet.graph()[v].layer; layer.type() == "Linear")
      linear.push_back(found.best.splits[v]);
    else if (layer.multiplies())
      CHECK(found.best.splits[v].batch >= 4);
  CHECK(linear == std::vector<Split>{{.input = 4}, {.channel = 4}, {.input = 4}});

  const Network resnet = make_model("resnet50");
  const FoundPlan data =
      find_plan(resnet, {.batch = 16 * 8}, momentum, ready_cluster("h100-ndr"), 8);
  CHECK(data.others[0].name == "data");
  CHECK(data.best.step.seconds > 0.97 * data.others[0].step.seconds);
}

TEST_CASE("all searchers find plans, none better than all there are") {
  const Network net = make_model("lenet");
  const Cluster cluster = ready_cluster("cpu-1g").of(2);
  PlannerOptions planner{.most_splits = 3};
  const auto seconds = [&](const char* searcher) {
    planner.searcher = searcher;
    planner.search.swarm = {.particles = 10, .iterations = 20};
    planner.search.mcmc.iterations = 500;
    planner.search.most_selections = 1 << 20;
    return find_plan(net, {.batch = 8}, momentum, cluster, 2, planner).best.step.seconds;
  };
  const double exact = seconds("exact");
  for (const char* searcher : {"swarm", "mcmc"}) CHECK(seconds(searcher) <= exact);
  CHECK(seconds("fixed") >= exact);
}

TEST_CASE("memory is a limit, and can be bought") {
  const Network net = make_model("lenet");
  const Cluster cluster = ready_cluster("cpu-10g").of(2);
  const PlaceOptions options{.batch = 512};
  const auto plan = [&](double bytes) {
    return find_plan(net, options, momentum, with_memory(cluster, bytes), 2);
  };
  const FoundPlan roomy = plan(1e12);
  const double all = double(roomy.best.memory.total());
  CHECK(roomy.bought.empty());

  for (const double part : {0.95, 0.7, 0.5}) {
    INFO(part);
    const FoundPlan tight = plan(part * all);
    CHECK(double(tight.best.memory.total()) <= part * all);
    CHECK(tight.best.step.seconds >= roomy.best.step.seconds);
    PlaceOptions placing = tight.placing;
    placing.splits = tight.best.splits;
    std::size_t most = 0;
    for (const Memory& m : predict_memory(net, placing, 2, momentum))
      most = std::max(most, m.total());
    CHECK(most == tight.best.memory.total());
    CHECK(placing.batch * placing.micro_batches == 512);
  }
  CHECK(!plan(0.5 * all).bought.empty());

  CHECK_THROWS_WITH(plan(1e5), ContainsSubstring("no plan fits into memory: the one that takes "
                                                 "the least takes ") &&
                                   ContainsSubstring(" MB of a device's 0.1 MB; more devices, a "
                                                     "smaller batch would help"));
}

TEST_CASE("data-parallel is compared with as it would be placed by itself") {
  const Network net = make_model("alexnet");
  const Cluster cluster = ready_cluster("v100-100g");
  constexpr std::int64_t batch = 64;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<bool> cheap;
  for (const auto& v : net.graph())
    cheap.push_back(v.layer && !v.layer->multiplies() && !v.layer->is_loss());
  // Bytes of the fullest rank, and seconds.
  const auto placed = [&](int parts, bool shards, bool recomputes) {
    PlaceOptions o{.batch = batch / parts, .shard_optimizer = shards, .micro_batches = parts};
    if (recomputes) o.recompute = cheap;
    const std::vector<Split> data(net.graph().size(), input_split(o.batch, 4));
    StepModel model(net, o, momentum, cluster, 4, std::make_shared<FormulaTimes>(cluster));
    const double seconds = model.seconds(model.select(data));
    o.splits = data;
    std::size_t most = 0;
    for (const Memory& m : predict_memory(net, o, 4, momentum)) most = std::max(most, m.total());
    return std::pair(double(most), seconds);
  };
  const double all = placed(1, false, false).first;
  bool differs = false;
  for (const double part : {1.0, 0.95, 0.9, 0.85, 0.8}) {
    INFO(part);
    double least = part < 1 ? infinity : placed(1, false, false).second;
    for (int parts = 1; parts <= batch && least == infinity; parts *= 2)
      for (const bool shards : {false, true})
        for (const bool recomputes : {false, true})
          if (const auto [bytes, seconds] = placed(parts, shards, recomputes); bytes <= part * all)
            least = std::min(least, seconds);
    const FoundPlan found =
        find_plan(net, {.batch = batch}, momentum, with_memory(cluster, part * all), 4);
    CHECK(found.data.has_value() == (least < infinity));
    if (!found.data) continue;
    CHECK(found.data->plan.name == "data");
    CHECK(found.data->plan.step.seconds == Approx(least).epsilon(1e-12));
    CHECK(found.best.step.seconds <= least);
    differs = differs || found.data->bought != found.bought;
  }
  CHECK(differs);
}
