// Plans that run beside their predictions.
#include "catch.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/train/validate_plans.hpp>

#include <algorithm>

using namespace lamina;
using Catch::Matchers::WithinRel;

namespace {

Network small() {
  Network net({.c = 2, .h = 6, .w = 6});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "conv");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 10}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

Calibration known(int ranks) {
  Calibration c{.cluster = ready_cluster("cpu-1g").of(ranks)};
  c.times = std::make_shared<MeasuredTimes>(c.cluster);
  return c;
}

}  // namespace

TEST_CASE("plans run, unlike each other, beside what they are predicted to take") {
  std::vector<Validation> by_rank(2);
  const auto data = synthetic({.limit = 16, .channels = 2, .height = 6, .width = 6});
  run_ranks(2, [&](World& world) {
    by_rank[std::size_t(world.rank())] = validate_plans(
        small(), *data, world, SGD{.rate = 1e-6}, {.batch = 16, .backend = "reference"}, known(2),
        {.plans = 8, .rounds = 2, .seconds = 0.01});
  });
  const Validation& v = by_rank[0];
  CHECK(v.ranks == 2);
  CHECK(v.nodes == 2);
  CHECK(v.batch == 16);
  REQUIRE(v.plans.size() == 8);
  CHECK(v.plan("data") != nullptr);
  CHECK(v.plans.back().name.starts_with("mixed "));
  const Network net = small();
  StepModel formulas(net, {.batch = 16}, Optimizer(SGD{.rate = 1e-6}).rule(), known(2).cluster, 2,
                     std::make_shared<FormulaTimes>(known(2).cluster));
  for (std::size_t i = 0; i < v.plans.size(); ++i) {
    const ValidatedPlan& p = v.plans[i];
    INFO(p.name);
    CHECK(std::ranges::count(v.plans, p.splits, &ValidatedPlan::splits) == 1);
    CHECK(p.rounds.size() == 2);
    CHECK(p.rounds == by_rank[1].plans[i].rounds);  // of the slower rank
    CHECK(p.measured == (p.rounds[0] + p.rounds[1]) / 2);
    CHECK(p.formulas == formulas.seconds(formulas.select(p.splits)));
    // All that was predicted is there, layer by layer.
    double predicted = 0, kernels = 0;
    for (const Compared& c : p.kernels) predicted += c.predicted, kernels += c.measured;
    for (const Compared& c : p.waiting)
      if (c.kind != "gradients, also hidden") predicted += c.predicted;
    CHECK_THAT(predicted, WithinRel(p.calibrated, 1e-9));
    CHECK(kernels > 0);
    for (const std::string type : {"Conv2D", "ReLU", "Linear", "SoftmaxCrossEntropy"}) {
      const auto at = std::ranges::find(p.kernels, type, &Compared::kind);
      REQUIRE(at != p.kernels.end());
      CHECK(at->predicted > 0);
      CHECK(at->measured > 0);
    }
  }
  const auto gradients =
      std::ranges::find(v.plan("data")->waiting, "gradients, also hidden", &Compared::kind);
  REQUIRE(gradients != v.plan("data")->waiting.end());
  CHECK(gradients->measured > 0);
}

TEST_CASE("a plan that would take too long does not run") {
  const auto data = synthetic({.limit = 16, .channels = 2, .height = 6, .width = 6});
  run_ranks(2, [&](World& world) {
    const Validation v =
        validate_plans(small(), *data, world, SGD{.rate = 1e-6},
                       {.batch = 16, .backend = "reference"}, known(2), {.longest = 0});
    if (world.rank() != 0) return;
    REQUIRE(v.plans.size() == 1);
    CHECK(v.plans[0].name == "data");
  });
}

TEST_CASE("a validation without plans or rounds is refused") {
  const auto data = synthetic({.limit = 16, .channels = 2, .height = 6, .width = 6});
  run_ranks(1, [&](World& world) {
    CHECK_THROWS_WITH(
        validate_plans(small(), *data, world, SGD{}, {.batch = 16, .backend = "reference"},
                       known(1), {.rounds = 0}),
        ContainsSubstring("got 24 and 0"));
  });
}
