// The table of a plan: exact text at several widths (tests/golden/plan_*.txt), and that it states
// what is sent.
#include "catch.hpp"
#include "support/golden.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/profile/measure.hpp>

#include <map>

using namespace lamina;
using test::golden;

namespace {

/// LeNet on 4 ranks: reshards that are one-sided, copies of x that rows are cut of, and most else.
Plan mixed() {
  Plan plan{.ranks = 4};
  return plan.split("conv1", {.channel = 2, .height = 2})
      .split("conv2", {.batch = 2, .height = 2})
      .split("pool1", {.height = 4})
      .split("fc1", {})
      .split("relu3", {.batch = 3})
      .split("fc2", {.channel = 4})
      .split("relu4", {.channel = 4})
      .split("fc3", {.input = 4});
}

PlaceOptions placing(const std::vector<Decision>& decisions, std::int64_t batch,
                     const Communicator& ranks) {
  return {.batch = batch,
          .backend = reference_backend(),
          .ranks = ranks,
          .splits = splits_of(decisions),
          .recompute = recompute_of(decisions)};
}

/// The tables that rank 0 prints of a model under a plan, one for each of the options.
std::vector<std::string> tables(const Plan& plan, const std::string& model, std::int64_t batch,
                                bool shard, const std::vector<PlanTableOptions>& options,
                                int micro_batches = 1) {
  std::vector<std::string> all;
  run_ranks(plan.ranks, [&](World& world) {
    const Network net = make_model(model);
    const auto decisions = decide(plan, net, batch);
    PlaceOptions o = placing(decisions, batch, world);
    o.shard_optimizer = shard, o.micro_batches = micro_batches;
    const PlacedNetwork placed(net, o);
    if (world.rank() > 0) return;
    for (const PlanTableOptions& with : options) all.push_back(plan_table(decisions, placed, with));
  });
  return all;
}

std::size_t longest_line(const std::string& s) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t end = s.find('\n', at);
    longest = std::max(longest, end - at);
    CHECK((end == at || s[end - 1] != ' '));  // nothing is padded at its end
    at = end + 1;
  }
  return longest;
}

}  // namespace

TEST_CASE("tables of plans", "[golden]") {
  const auto lenet = tables(mixed(), "lenet", 10, false, {{.width = 76}, {.width = 116}});
  golden("plan_lenet_76.txt", lenet[0]);
  golden("plan_lenet_116.txt", lenet[1]);
  CHECK(longest_line(lenet[0]) <= 76);
  CHECK(longest_line(lenet[1]) <= 116);

  Plan some = mixed();
  some.recompute("conv*").recompute("fc2");
  golden("plan_lenet_sharded.txt", tables(some, "lenet", 10, true, {{.width = 116}})[0]);

  const Plan spatial = built_in_plan("spatial", resnet50(), 8, 8);
  const auto resnet =
      tables(spatial, "resnet50", 8, false, {{.width = 76}, {.width = 116}, {.wide = true}});
  golden("plan_resnet50_76.txt", resnet[0]);
  golden("plan_resnet50_116.txt", resnet[1]);
  CHECK(longest_line(resnet[0]) <= 76);
  CHECK(longest_line(resnet[1]) <= 116);
  CHECK(std::ranges::count(resnet[2], '\n') == std::ptrdiff_t(resnet50().graph().size()));
}

TEST_CASE("a step of several micro-batches sends all but gradients in each") {
  const Plan owt = built_in_plan("owt", lenet(), 2, 2);
  for (const int micro_batches : {1, 4}) {
    const std::string table = tables(owt, "lenet", 2, false, {{.wide = true}}, micro_batches).at(0);
    CHECK_THAT(table, ContainsSubstring("fwd all_reduce(2) " +  // 84 features of 2 images
                                        std::string(micro_batches == 1 ? "672 B" : "2.69 kB")));
    CHECK_THAT(table, ContainsSubstring("dw all_reduce(2) 624 B"));  // 6 * 25 weights, 6 biases
  }
}

TEST_CASE("the rank that sends the most sends what the layers state") {
  Plan rows{.ranks = 3}, fewer{.ranks = 4};
  rows.split("*", {.height = 3});
  for (const char* layer : {"fc1", "relu3", "fc2", "relu4", "fc3"})
    rows.split(layer, {.channel = 3});
  rows.split("relu3", {.batch = 2}).split("loss", {.batch = 3});
  fewer.split("conv1", {.batch = 3}).split("*2", {.height = 2, .width = 2}).split("fc2", {});
  fewer.split("conv2", {.channel = 2, .height = 2});  // the sum of dx has the halos' rows, too
  for (const Plan& plan : {mixed(), rows, fewer}) {
    std::map<std::pair<std::string, Pass>, double> stated;
    Profile p;
    run_ranks(plan.ranks, [&](World& world) {
      PlacedNetwork net = lenet().place(placing(decide(plan, lenet(), 10), 10, world));
      net.initialize(1);
      Profile mine = profile(net, world, {.warmup = 0, .steps = 1, .alone = false});
      if (world.rank() > 0) return;
      p = std::move(mine);
      for (const Step& step : net.steps())
        if (step.layer)
          for (const Message& m :
               step.layer->cost(step.input_shapes, step.split(), DType::f32).messages)
            if (step.split().ways(m.axes) > 1) stated[{step.name, m.pass}] += m.bytes;
    });
    int sending = 0;
    for (const ProfileRow& r : p.rows) {
      if (r.layer < 0 || r.pass == Pass::weight_grad) continue;  // buckets have padding
      INFO(r.name << ' ' << name(r.pass));
      CHECK(r.comm_bytes == stated[{r.name, r.pass}]);
      sending += r.comm_bytes > 0;
    }
    CHECK(sending > 8);
  }
}
