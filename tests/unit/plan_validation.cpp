// How right predictions were: against what one can count by hand.
#include "catch.hpp"
#include "profile_folder.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/kendall.hpp>
#include <lamina/plan/validation.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>

using namespace lamina;
using Catch::Matchers::WithinAbs;

namespace {

ValidatedPlan plan(std::string name, double formulas, double calibrated, std::vector<double> rounds,
                   double measured) {
  return {.name = std::move(name),
          .formulas = formulas,
          .calibrated = calibrated,
          .rounds = std::move(rounds),
          .measured = measured};
}

Validation four() {
  Validation v{.model = "m", .cluster = "c", .ranks = 2, .nodes = 2, .batch = 8};
  v.plans = {plan("data", 3, 4.4, {5, 4, 4}, 4), plan("owt", 1, 1.8, {2.1, 2.2, 1.9}, 2),
             plan("auto", 1.5, 1.1, {2, 2, 9}, 2.2), plan("far", 9, 9, {1, 1, 1}, 1)};
  v.plans[0].kernels = {{"a", "Conv2D", 1, 2}, {"b", "Conv2D", 1, 1}, {"b", "ReLU", 0, 1}};
  v.plans[1].kernels = {{"a", "ReLU", 3, 0}};
  v.plans[1].waiting = {{"a", "halo", 1, 3}};
  return v;
}

}  // namespace

TEST_CASE("Kendall's rank correlation counts pairs") {
  CHECK(kendall({1, 2, 3, 4}, {10, 20, 30, 40}) == 1);
  CHECK(kendall({1, 2, 3, 4}, {4, 3, 2, 1}) == -1);
  CHECK_THAT(kendall({1, 2, 3, 4}, {1, 2, 4, 3}), WithinAbs(4.0 / 6, 1e-15));  // one of six pairs
  // Ties, by hand: pairs agree 4, differ 0; 5 pairs differ in a, 5 in b.
  CHECK_THAT(kendall({1, 1, 2, 3}, {1, 2, 3, 3}), WithinAbs(4.0 / 5, 1e-15));
  CHECK(kendall({1, 1}, {1, 2}) == 0);
  CHECK(kendall({}, {}) == 0);
}

TEST_CASE("a validation sums up how right predictions were") {
  const Validation v = four();
  CHECK_THAT(v.error(&ValidatedPlan::calibrated), WithinAbs((0.1 + 0.1 + 0.5 + 8) / 4, 1e-12));
  CHECK_THAT(v.error(&ValidatedPlan::formulas),
             WithinAbs((0.25 + 0.5 + (1 - 1.5 / 2.2) + 8) / 4, 1e-12));
  // far is last by prediction and first in truth; all other pairs but owt and auto agree.
  CHECK_THAT(v.rank_correlation(&ValidatedPlan::calibrated), WithinAbs(-2.0 / 6, 1e-12));
  CHECK(v.fastest()->name == "far");
  const auto kernels = v.kernels();
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0].kind == "Conv2D");
  CHECK(kernels[0].predicted == 2);
  CHECK(kernels[0].measured == 3);
  CHECK(kernels[1].predicted == 3);
  CHECK(kernels[1].measured == 1);
  CHECK(v.waiting().at(0).kind == "halo");
}

TEST_CASE("the plan that is chosen is the fastest of those that would be timed") {
  Validation v = four();
  // Not "far", which nobody would time; auto, by all rounds but the last.
  CHECK(v.chosen()->name == "auto");
  v.plans[2].rounds = {2.3, 2.3, 1};
  CHECK(v.chosen()->name == "owt");
  v.plans[0].calibrated = 10;  // data is timed whatever was predicted
  v.plans[0].rounds = {0.5, 0.5, 4};
  CHECK(v.chosen()->name == "data");
  CHECK(Validation{}.chosen() == nullptr);
  CHECK(Validation{}.fastest() == nullptr);
  CHECK(v.plan("none") == nullptr);
}

TEST_CASE("a validation as a table and as JSON") {
  const Validation v = four();
  const std::string table = validation_table(v);
  CHECK(table.find("far") < table.find("owt"));  // the fastest first
  CHECK_THAT(table, ContainsSubstring("mean error of a step: calibrated 217.5 %"));
  CHECK_THAT(table, ContainsSubstring("of 4 plans: calibrated -0.333"));
  CHECK_THAT(table,
             ContainsSubstring("chosen: auto, 120.0 % slower than the fastest, far\n1.82 times as "
                               "fast as data\n"));
  CHECK_THAT(table, ContainsSubstring("2200.00  2000.00 2000.00 9000.00\n"));
  const std::string narrow = validation_table(v, {.width = 80});
  CHECK_THAT(narrow, ContainsSubstring("2200.00\n"));
  std::size_t longest = 0;
  for (std::size_t at = 0, end; (end = narrow.find('\n', at)) != narrow.npos; at = end + 1)
    longest = std::max(longest, end - at);
  CHECK(longest <= 80);
  const lamina::test::Folder folder;
  const std::string path = folder / "plan_validation.json";
  write_validation_json(path, v);
  const auto j = nlohmann::json::parse(read_file(path, 1 << 20));
  CHECK(j.at("schema") == validation_schema);
  CHECK(j.at("chosen") == "auto");
  CHECK(j.at("fastest") == "far");
  CHECK(j.at("calibrated").at("mean_error") == v.error(&ValidatedPlan::calibrated));
  CHECK(j.at("formulas").at("kendall") == v.rank_correlation(&ValidatedPlan::formulas));
  REQUIRE(j.at("plans").size() == 4);
  CHECK(j.at("plans")[2].at("rounds") == nlohmann::json({2, 2, 9}));
  CHECK(j.at("plans")[1].at("waiting")[0].at("measured") == 3);
}
