// What is said about a plan that was found: exact tables at two widths (tests/golden/prediction_*),
// runners-up against trying all, and where data-parallel stops paying.
#include "catch.hpp"
#include "support/golden.hpp"

#include <lamina/base/file.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/prediction.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

using namespace lamina;
using test::golden;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One device on a node, and slow links: sums of gradients take as long as kernels.
Cluster slow_cluster(int devices, double memory = 1e12) {
  const DeviceModel device{.name = "slow device",
                           .memory = memory,
                           .bandwidth = 4e9,
                           .flops = {{.dtype = DType::f32, .gemm = 4e9, .conv = 2e9}},
                           .launch = 1e-6};
  return {
      .name = "slow", .nodes = {{devices, device}}, .inside = {1e-5, 1e9}, .across = {1e-5, 1e8}};
}

/// Made by hand, with numbers that are told apart.
PredictedPlan made_plan(std::string name, const std::vector<Split>& splits, double longer) {
  const std::vector<std::string> names = {"input", "conv1", "relu1", "fc1", "loss"};
  PredictedPlan plan{.name = std::move(name), .splits = splits};
  for (std::size_t v = 0; v < names.size(); ++v) {
    const double n = double(v) * longer;
    PredictedLayer l{.name = names[v], .split = splits[v]};
    if (v > 0) l.kernels = {.forward = 2e-3 * n, .input_grad = 1e-3 * n, .update = 1e-4 * n};
    if (v == 1) l.halo = 4e-4 * longer;
    if (v == 3) l.collectives = 3e-4, l.redistribution = 7e-4, l.gradients = 5e-4 * longer;
    plan.step.seconds += l.seconds();
    plan.step.layers.push_back(l);
  }
  plan.memory = {.parameters = 300000000, .activations = std::size_t(7e8 * longer)};
  return plan;
}

Prediction made() {
  const Split batch{.batch = 4}, rows{.batch = 2, .height = 2}, features{.channel = 4};
  Prediction p{.model = "small", .cluster = "made", .device = "no device", .dtype = "f32"};
  p.searcher = "exact", p.devices = 4, p.micro_batches = 2, p.batch = 64, p.steps_tried = 123;
  p.device_memory = 1.5e9, p.bought = {"a sharded optimizer", "2 micro-batches"};
  p.data_bought = {"4 micro-batches"};
  p.plans = {made_plan("auto", {batch, rows, rows, features, batch}, 1),
             made_plan("data", {batch, batch, batch, batch, batch}, 1.5),
             made_plan("owt", {batch, batch, batch, features, batch}, 2)};
  p.plans[2].fits = false;
  p.runners_up = {{}, {batch, 1e-3}, {{.height = 4}, 5e-4}, {{.input = 4}, 2e-3}, {}};
  p.convergence = {0.05, 0.04, 0.0395};
  const auto point = [](int n, std::int64_t b, double data, double best) {
    return ScalingPoint{.devices = n, .batch = b, .data = data, .best = best};
  };
  p.strong = {point(1, 64, infinity, infinity), point(2, 64, 0.5, 0.5), point(4, 64, 0.25, 0.24),
              point(8, 64, 0.26, 0.13)};
  p.strong[0].reason = "no plan fits into memory";
  p.strong[1].bought = {"2 micro-batches"};
  p.weak = {point(1, 16, 0.4, 0.4), point(2, 32, 0.42, 0.41)};
  p.sweep = {point(1, 32, 1, 0.5), point(1, 64, infinity, 1), point(2, 32, 0.5, 0.5),
             point(2, 64, infinity, infinity)};
  return p;
}

std::string all_tables(const Prediction& p, int width) {
  const PlanTableOptions options{.width = width};
  std::string s;
  for (const std::string& line : prediction_remarks(p)) append(s, text("# ", line, '\n'));
  return s + layer_table(p, options) + '\n' + plans_table(p, options) + '\n' +
         scaling_table(p.strong, options) + '\n' + scaling_table(p.weak, options) + '\n' +
         sweep_table(p.sweep);
}

std::size_t longest_line(const std::string& s) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t end = s.find('\n', at);
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  return longest;
}

FoundPlan found_on(const Cluster& cluster, std::int64_t batch, const PlannerOptions& planner = {}) {
  return find_plan(make_model("lenet"), {.batch = batch}, {.momentum = 0.9}, cluster,
                   cluster.devices(), planner);
}

}  // namespace

TEST_CASE("tables of predictions", "[golden]") {
  const Prediction p = made();
  golden("prediction_80.txt", all_tables(p, 80));
  golden("prediction_120.txt", all_tables(p, 120));
  CHECK(longest_line(layer_table(p, {.width = 80})) <= 80);
  CHECK(longest_line(plans_table(p, {.width = 80})) <= 80);
  CHECK(longest_line(scaling_table(p.strong, {.width = 80})) <= 80);
  const std::string wide = layer_table(p, {.wide = true});
  CHECK(std::ranges::count(wide, '\n') == 1 + 4 + 1);  // head, layers, step
}

TEST_CASE("data-parallel is said to be the answer where it is") {
  Prediction p = made();
  CHECK(plans_table(p).find("auto is 48.5 % faster than data-parallel") != std::string::npos);
  p.plans[1].fits = false;
  CHECK(plans_table(p).find("Data-parallel does not fit into memory; auto does") !=
        std::string::npos);
  p.plans[1].fits = true;
  p.plans[0] = p.plans[1], p.plans[0].name = "auto";
  CHECK(plans_table(p).find("Data-parallel is the answer") != std::string::npos);
  p.plans.erase(p.plans.begin() + 1);
  CHECK(plans_table(p).find("Data-parallel is not possible here") != std::string::npos);
}

TEST_CASE("what is predicted is what was found, and a runner-up is the best of the others") {
  const Cluster cluster = slow_cluster(4);
  const FoundPlan found = found_on(cluster, 16);
  const Prediction p = prediction_of(found, "lenet", "exact");
  CHECK(p.devices == 4);
  CHECK(p.batch == 16);
  CHECK(p.device_memory == 1e12);
  CHECK(p.best().name == "auto");
  CHECK(p.plan("owt")->step.seconds == found.others[1].step.seconds);
  CHECK(p.plan("nothing") == nullptr);
  const auto splits = found.model->splits_of(found.selection);
  int others = 0;
  for (std::size_t v = 0; v < p.runners_up.size(); ++v) {
    INFO(p.best().step.layers[v].name);
    double least = infinity;
    for (int option = 0; option < int(found.model->splits(int(v)).size()); ++option) {
      if (found.model->splits(int(v))[std::size_t(option)] == splits[v]) continue;
      Selection other = found.selection;
      other[v] = option;
      least = std::min(least, found.model->predict(other).seconds);
    }
    CHECK(p.runners_up[v].split != splits[v]);
    if (!std::isfinite(least)) continue;
    ++others;
    CHECK(p.runners_up[v].seconds == Approx(least - p.best().step.seconds).margin(1e-15));
  }
  CHECK(others > 5);
}

TEST_CASE("many splits: built-in plans stay among them") {
  const Prediction p = prediction_of(found_on(ready_cluster("h100-ndr").of(64), 32), "lenet", "");
  CHECK(p.devices == 64);
  CHECK(p.best().step.seconds <= p.plan("data")->step.seconds);
}

TEST_CASE("points of scaling are plans of their own") {
  const Cluster cluster = slow_cluster(2);
  const Network net = make_model("lenet");
  const UpdateRule rule{.momentum = 0.9};
  const ScalingPoint p = predict_point(net, {.batch = 4}, rule, cluster, 4, 32);
  const FoundPlan found = found_on(cluster.of(4), 32);
  CHECK(p.devices == 4);
  CHECK(p.batch == 32);
  CHECK(p.best == found.best.step.seconds);
  CHECK(p.data == found.others[0].step.seconds);
  const ScalingPoint parts =
      predict_point(net, {.batch = 4, .micro_batches = 4}, rule, cluster, 2, 32);
  CHECK(parts.best ==
        find_plan(net, {.batch = 8, .micro_batches = 4}, rule, cluster, 2).best.step.seconds);
  CHECK(predict_point(net, {.micro_batches = 3}, rule, cluster, 2, 32).reason ==
        "a batch of 32 has no 3 equal micro-batches");
  const ScalingPoint none = predict_point(net, {}, rule, slow_cluster(1, 1e3), 1, 32);
  CHECK(none.reason.find("no plan fits into memory") == 0);
  CHECK(none.best == infinity);
  CHECK(scaling_devices(cluster, 9) == std::vector<int>{1, 2, 4, 8});
  CHECK(scaling_devices({.devices_per_node = 6}, 24) == std::vector<int>{1, 2, 4, 6, 12, 24});
  CHECK(scaling_devices({.devices_per_node = 8}, 4) == std::vector<int>{1, 2, 4});
}

TEST_CASE("a plan that does not fit has no point") {
  const FoundPlan all = found_on(slow_cluster(4), 16);
  const Prediction p = prediction_of(all, "lenet", "exact");
  const double data = double(p.plan("data")->memory.total());
  const double least = double(p.plan("owt")->memory.total());
  REQUIRE(least < data);
  const ScalingPoint point =
      predict_point(make_model("lenet"), {}, {.momentum = 0.9}, slow_cluster(4, (least + data) / 2),
                    4, 16, {.buys = false});
  CHECK(point.data == infinity);
  CHECK(point.best <= p.plan("owt")->step.seconds);
}

TEST_CASE("where data-parallel stops paying") {
  const auto points = [](const std::vector<std::pair<double, double>>& seconds) {
    std::vector<ScalingPoint> all;
    for (const auto& [data, best] : seconds)
      all.push_back({.devices = 1 << all.size(), .batch = 100, .data = data, .best = best});
    return all;
  };
  const auto turns = [&](const std::vector<std::pair<double, double>>& seconds) {
    const TurningPoints t = turning_points(points(seconds));
    return std::pair(t.fastest, t.overtaken);
  };
  CHECK(turns({{4, 4}, {2, 2}, {1, 1}}) == std::pair(0, 0));
  CHECK(turns({{4, 4}, {2, 1.8}, {2, 1}}) == std::pair(2, 2));
  CHECK(turns({{4, 4}, {5, 5}, {2, 2}}) == std::pair(0, 0));  // slower on two alone
  CHECK(turns({{4, 4}, {5, 5}, {2, 2}, {2, 2}}) == std::pair(4, 0));
  CHECK(turns({{4, 3}, {2, 1.99}, {1, 0.9}}) == std::pair(0, 4));   // not on two
  CHECK(turns({{4, 3}, {2, 1.99}, {1, 0.96}}) == std::pair(0, 0));  // 4.2 %
  CHECK(turns({{4, 4}, {infinity, 2}, {infinity, 1}}) == std::pair(0, 2));
  CHECK(turns({{infinity, infinity}, {2, 2}, {3, 2.9}}) == std::pair(2, 0));
}

TEST_CASE("of a mixed cluster all kinds of devices are named") {
  Cluster cluster = slow_cluster(1);
  cluster.nodes.push_back(cluster.nodes[0]);
  cluster.nodes[1].count = 2, cluster.nodes[1].device.name = "slower";
  CHECK(prediction_of(found_on(cluster, 6), "lenet", "exact").device == "slow device, slower");
}

TEST_CASE("of scaling nothing is said of plans that are missing") {
  const auto said = [](double data, double best) {
    return scaling_table({{.devices = 1, .batch = 4, .data = data, .best = data},
                          {.devices = 2, .batch = 4, .data = infinity, .best = best}});
  };
  CHECK_THAT(said(4, 2), ContainsSubstring("Data-parallel gets faster up to 1 device; "));
  CHECK_THAT(said(infinity, 2), ContainsSubstring("Data-parallel is not possible, or does not"));
  CHECK_THAT(said(infinity, infinity), ContainsSubstring("No plan is possible, or fits"));
  CHECK(said(infinity, 2).find("faster") == std::string::npos);
  CHECK(said(infinity, infinity).find("faster") == std::string::npos);
}

TEST_CASE("predictions as files") {
  const Prediction p = made();
  const auto path = std::filesystem::temp_directory_path() / "lamina_prediction_test.json";
  write_prediction_json(path.string(), p);
  const std::string json = read_file(path.string(), 1 << 20);
  std::filesystem::remove(path);
  CHECK(json.find("\"schema\": \"lamina-prediction\"") != std::string::npos);
  CHECK(json.find("\"data_seconds\":null,\"auto_seconds\":null") != std::string::npos);
  CHECK(json.find("inf") == std::string::npos);
  CHECK(scaling_svg(p).find("strong scaling, batch 64") != std::string::npos);
  CHECK_THROWS_WITH(scaling_svg({}), "a drawing of scaling needs points of it");
  CHECK(convergence_svg(p).find("searcher exact") != std::string::npos);
  CHECK_THROWS_WITH(convergence_svg({}), "the search had no iterations to be drawn");
}
