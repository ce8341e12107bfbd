// Whole networks under random legal plans: five steps of training give the losses of one rank.
#include "catch.hpp"
#include "support/random_plans.hpp"

#include <lamina/comm/threads.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  const char* model;
  int plans;
  std::string backend = "reference";
  DType dtype = DType::f64;
  double tolerance = 1e-8;
};

void check_plans(const Case& c) {
  const std::int64_t batch = 9;
  const auto train = [&](const World& world, std::vector<Split> splits,
                         std::vector<bool> recompute) {
    return five_losses(thin(c.model), world,
                       {.batch = batch,
                        .backend = c.backend,
                        .dtype = c.dtype,
                        .splits = std::move(splits),
                        .recompute = std::move(recompute)});
  };
  const Random random(11, key_of(c.model));
  std::uint64_t draw = 0;
  const std::vector<double> alone = train(World(), {}, {});
  REQUIRE(alone.size() == random_plan_steps);
  CHECK(alone.front() != alone.back());
  for (int i = 0; i < c.plans; ++i) {
    const int ranks = 2 + i % 7;
    const Network net = thin(c.model);
    const auto plan = random_plan(net, ranks, batch, random, draw);
    std::vector<bool> recompute(plan.size());  // of every second plan half of the layers
    for (std::size_t v = 0; i % 2 == 1 && v < plan.size(); ++v)
      recompute[v] = random.uniform(draw++) < 0.5;
    INFO(c.model << ", plan " << i << " on " << ranks << " ranks:\n" << describe(net, plan));
    std::vector<double> losses;
    run_ranks(ranks, [&](World& world) {
      auto mine = train(world, plan, recompute);
      if (world.rank() == ranks - 1) losses = std::move(mine);
    });
    REQUIRE(losses.size() == alone.size());
    for (int s = 0; s < random_plan_steps; ++s) {
      INFO("step " << s);
      CHECK(std::abs(losses[std::size_t(s)] - alone[std::size_t(s)]) <
            c.tolerance * std::abs(alone[std::size_t(s)]));
    }
  }
}

}  // namespace

TEST_CASE("LeNet under random plans trains as on one rank") { check_plans({"lenet", 80}); }
TEST_CASE("a thin AlexNet under random plans trains as on one rank") {
  check_plans({"alexnet", 50});
}
TEST_CASE("ResNet-20 under random plans trains as on one rank") { check_plans({"resnet20", 40}); }
TEST_CASE("a thin VGG-11 under random plans trains as on one rank") { check_plans({"vgg11", 50}); }
TEST_CASE("LeNet under random plans trains as on one rank, with oneDNN") {
  if (!has_onednn()) return;
  check_plans({"lenet", 20, "onednn", DType::f32, 2e-4});
}
