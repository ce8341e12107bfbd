// What plans predict of layers, beside what was measured of them: every second in one row.
#include "catch.hpp"
#include "profile_small.hpp"
#include "support/clusters.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/plan/add_predicted.hpp>
#include <lamina/plan/find_plan.hpp>
#include <lamina/train/trainer.hpp>

#include <optional>
#include <string_view>

using namespace lamina;
using namespace lamina::test;

namespace {

/// A step of small() under a built-in plan, as it was predicted and in a profile.
struct Case {
  Plan plan;
  Profile profile;
  PredictedStep step;

  double predicted(std::string_view name, std::optional<Pass> pass = {}) const {
    double s = 0;
    for (const ProfileRow& r : profile.rows)
      if (r.name == name && (!pass || r.pass == *pass)) s += r.predicted;
    return s;
  }
  const PlanPrediction::Layer& layer(std::string_view name) const {
    for (const auto& l : plan.prediction->layers)
      if (l.name == name) return l;
    throw Error(text("no layer ", name));
  }
};

/// On two ranks. `change` may do what makes the plan one of another step. The profile has no row of
/// the forward of the layer `without`.
template <class Change>
Case run_case(const char* name, TrainerOptions options, const Change& change,
              std::string_view without = {}) {
  const Network net = small();
  const Cluster cluster = slow_cluster(2);
  const std::int64_t at_once = options.micro_batch > 0 ? options.micro_batch : options.batch;
  options.splits = splits_of(decide(built_in_plan(name, net, at_once, 2), net, at_once, true));
  options.backend = "reference";
  const SGD rule{.momentum = 0.9};
  StepModel model(net, placing_of(options), Optimizer(rule).rule(), cluster, 2,
                  std::make_shared<FormulaTimes>(cluster));
  Case c{.plan = {.ranks = 2}, .profile = {}, .step = {}};
  c.step = model.predict(model.select(options.splits));
  c.plan.prediction = plan_prediction(model, c.step);
  c.plan.timed = {{"auto", 0.5, 0.25}};
  change(c.plan);
  const auto data = synthetic({.limit = 64, .channels = 3, .height = 8, .width = 8, .classes = 5});
  run_ranks(2, [&](World& world) {
    Trainer trainer(net, world, rule, options);
    Loader loader = trainer.loader(*data, true);
    const Batch& batch = loader.next();
    Profile p = profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                              trainer.optimizer().rule(), {.steps = 2, .alone = false},
                              [&] { trainer.step(batch, loader.batches(), 1000); });
    std::erase_if(
        p.rows, [&](const ProfileRow& r) { return r.name == without && r.pass == Pass::forward; });
    add_predicted(p, trainer.network(), c.plan);
    if (world.rank() == 0) c.profile = std::move(p);
  });
  return c;
}
Case run_case(const char* name, const TrainerOptions& options) {
  return run_case(name, options, [](Plan&) {});
}

double sum(const Profile& p) {
  double s = 0;
  for (const ProfileRow& r : p.rows) s += r.predicted;
  return s;
}

}  // namespace

TEST_CASE("all rows together have the predicted step") {
  const char* plan = GENERATE("data", "owt", "spatial", "filter");
  const int how = GENERATE(0, 1, 2, 3);
  INFO(plan << ' ' << how);
  const Case c = run_case(
      plan,
      {.batch = 8, .micro_batch = how == 1 ? 4 : 0, .fuse = how == 2, .shard_optimizer = how == 3});
  REQUIRE(c.profile.plan);
  CHECK(c.profile.plan->seconds == c.step.seconds);
  CHECK(c.profile.plan->cluster == "slow");
  CHECK(c.profile.plan->timed.size() == 1);
  CHECK(c.step.seconds > 0);
  CHECK(sum(c.profile) == Approx(c.step.seconds).epsilon(1e-9));
}

TEST_CASE("a row has what was predicted of its layer and pass") {
  const Case c = run_case("spatial", {.batch = 8});
  for (const char* name : {"conv", "fc"}) {
    const LayerSeconds& passes = c.layer(name).passes;
    const double reorders = c.predicted(text(name, ".reorder"));
    REQUIRE(reorders == 0);
    CHECK(c.predicted(name, Pass::forward) == Approx(passes.forward).epsilon(1e-9));
    CHECK(c.predicted(name, Pass::weight_grad) == Approx(passes.weight_grad).epsilon(1e-9));
    CHECK(c.predicted(name, Pass::update) == Approx(passes.update).epsilon(1e-9));
    CHECK((passes.update > 0 && passes.update != passes.forward));
  }
  // From rows to samples: the layer behind pays for the way.
  const double moved = c.layer("flat").redistribution;
  CHECK(moved > 0);
  CHECK(c.predicted("flat.reshard") == Approx(moved).epsilon(1e-9));
}

TEST_CASE("a pass that left no row counts with the others of its layer") {
  const Case c = run_case(
      "data", {.batch = 8}, [](Plan&) {}, "relu");
  REQUIRE(test::find(c.profile, "relu", Pass::forward) == nullptr);
  const LayerSeconds& passes = c.layer("relu").passes;
  CHECK(passes.forward > 0);
  CHECK(c.predicted("relu", Pass::input_grad) ==
        Approx(passes.forward + passes.input_grad).epsilon(1e-9));
  CHECK(sum(c.profile) == Approx(c.step.seconds).epsilon(1e-9));
}

TEST_CASE("what a fused layer was predicted to take goes to the one that does it") {
  const Case apart = run_case("data", {.batch = 8});
  CHECK(apart.predicted("relu", Pass::forward) ==
        Approx(apart.layer("relu").passes.forward).epsilon(1e-9));
  const Case c = run_case("data", {.batch = 8, .fuse = true});
  REQUIRE(row(c.profile, "relu", Pass::forward).fused_into == "conv");
  CHECK(c.predicted("relu", Pass::forward) == 0);
  CHECK(c.predicted("conv", Pass::forward) ==
        Approx(c.layer("conv").passes.forward + c.layer("relu").passes.forward).epsilon(1e-9));
}

TEST_CASE("a prediction of another step says nothing of this one") {
  const auto with = [](const auto& change) {
    const Case c = run_case("data", {.batch = 8}, change);
    return c.profile.plan || sum(c.profile) > 0;
  };
  CHECK(with([](Plan&) {}));
  CHECK_FALSE(with([](Plan& p) { p.prediction->batch = 16; }));
  CHECK_FALSE(with([](Plan& p) { p.ranks = 4; }));
  CHECK_FALSE(with([](Plan& p) { p.prediction->layers[1].split = {.height = 2}; }));
  CHECK_FALSE(with([](Plan& p) { p.prediction->layers[1].name = "conv1"; }));
  CHECK_FALSE(with([](Plan& p) { p.prediction->layers[1].output.h *= 2; }));
  CHECK_FALSE(with([](Plan& p) { p.prediction->dtype = "bf16"; }));
  CHECK_FALSE(with([](Plan& p) { p.prediction->layers.clear(); }));
  CHECK_FALSE(with([](Plan& p) { p.prediction.reset(); }));
}

TEST_CASE("a plan that was found keeps what was predicted of it") {
  const Network net = small();
  const FoundPlan found =
      find_plan(net, {.batch = 4, .micro_batches = 2}, {.momentum = 0.9}, slow_cluster(2), 2);
  const Plan plan = plan_of(found, "small");
  REQUIRE(plan.prediction);
  CHECK(plan.prediction->batch == 8);
  CHECK(plan.prediction->seconds == found.best.step.seconds);
  REQUIRE(plan.prediction->layers.size() == net.graph().size());
  double all = 0;
  for (std::size_t v = 0; v < net.graph().size(); ++v) {
    const PlanPrediction::Layer& layer = plan.prediction->layers[v];
    CHECK(layer.name == net.graph()[v].name);
    CHECK(layer.split == found.best.splits[v]);
    CHECK(layer.output == net.graph()[v].shape);
    CHECK(layer.seconds() == Approx(found.best.step.layers[v].seconds()).epsilon(1e-12));
    all += layer.seconds();
  }
  CHECK(all == Approx(found.best.step.seconds).epsilon(1e-12));
}
