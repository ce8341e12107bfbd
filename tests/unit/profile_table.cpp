// The table of a profile: exact text for numbers made by hand (tests/golden/table_*.txt).
#include "catch.hpp"
#include "profile_made.hpp"
#include "support/golden.hpp"

#include <lamina/profile/table.hpp>

#include <sstream>

using namespace lamina;
using test::golden;
using test::made_profile;
using test::made_profile_on_machine;
using Group = TableOptions::Group;
using Sort = TableOptions::Sort;

namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

/// Without escape sequences.
std::string plain(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\033')
      i = text.find('m', i);
    else
      out += text[i];
  return out;
}

/// The names in the first column, the header and the footer apart.
std::vector<std::string> names(const Profile& profile, const TableOptions& options) {
  std::vector<std::string> first;
  for (const auto& line : lines(table(profile, options))) {
    if (line.rfind("sum_layers", 0) == 0) break;
    const bool rest = line.find(" more) ") != std::string::npos;
    first.push_back(rest ? line.substr(0, line.find(')') + 1) : line.substr(0, line.find("  ")));
  }
  first.erase(first.begin());
  return first;
}

}  // namespace

TEST_CASE("tables without ceilings", "[golden]") {
  golden("table_120.txt", table(made_profile()));
  golden("table_ranks_80.txt", table(made_profile(2), {.width = 80}));
  golden("table_ranks_100.txt", table(made_profile(2), {.width = 100}));
  golden("table_ranks_wide.txt", table(made_profile(2), {.wide = true}));
}

TEST_CASE("tables with roofs", "[golden]") {
  const Profile one = made_profile_on_machine(), two = made_profile_on_machine(2);
  golden("table_roof_80.txt", table(one, {.width = 80}));
  golden("table_roof_120.txt", table(one, {.width = 120}));
  golden("table_roof_ranks_80.txt", table(two, {.width = 80, .sort = Sort::wasted}));
  golden("table_roof_ranks_120.txt", table(two, {.width = 120}));
  golden("table_roof_ranks_wide.txt", table(two, {.wide = true}));
}

TEST_CASE("tables of groups", "[golden]") {
  const Profile p = made_profile_on_machine(2);
  golden("table_type_120.txt", table(p, {.group = Group::type}));
  golden("table_stage_80.txt", table(p, {.width = 80, .group = Group::stage}));
  golden("table_stage_wide.txt", table(p, {.wide = true, .group = Group::stage}));
}

TEST_CASE("tables with a plan and counters", "[golden]") {
  Profile p = made_profile_on_machine();
  for (ProfileRow& r : p.rows) {
    r.predicted = r.layer < 0 ? 0 : 1.25 * r.seconds();
    r.counts = Counts{4e6, 10e6, 50e3, r.layer < 0 ? 0 : 4e6};
  }
  golden("table_plan_160.txt", table(p, {.width = 160}));
  golden("table_plan_wide.txt", table(p, {.wide = true}));
  for (ProfileRow& r : p.rows) r.counts = Counts{4e6, 10e6, -1, -1};
  const std::string some = table(p, {.wide = true});
  CHECK_THAT(some, ContainsSubstring("ipc") && ContainsSubstring(" 2.50 "));
  CHECK_THAT(some, !ContainsSubstring("miss_mb") && !ContainsSubstring("dram_mb"));
}

TEST_CASE("colours change nothing but colours", "[golden]") {
  const Profile p = made_profile_on_machine(2);
  golden("table_colour.txt", table(p, {.colour = true}));
  for (const bool wide : {false, true}) {
    const std::string coloured = table(p, {.wide = wide, .colour = true});
    CHECK(plain(coloured) == table(p, {.wide = wide}));
    CHECK(coloured != plain(coloured));
  }
}

TEST_CASE("the table keeps to its width, and keeps the columns that matter") {
  for (const int ranks : {1, 2})
    for (int width = 70; width < 160; ++width)
      for (const Profile& p : {made_profile(ranks), made_profile_on_machine(ranks)})
        for (const Group group : {Group::layer, Group::type, Group::stage})
          for (const bool colour : {false, true})
            for (const auto& line :
                 lines(table(p, {.width = width, .group = group, .colour = colour}))) {
              INFO(line);
              CHECK(int(plain(line).size()) <= width);
            }
  const std::string narrow = lines(table(made_profile(2), {.width = 10})).front();
  for (const char* head : {"layer", "fwd_us", "dx_us", "dw_us", "upd_us", "total_us", "%"})
    CHECK_THAT(narrow, ContainsSubstring(head));
}

TEST_CASE("where splits differ, the table shows them") {
  Profile p = made_profile_on_machine(2);
  const auto head = [&](int width) { return lines(table(p, {.width = width})).front(); };
  CHECK_THAT(head(120), !ContainsSubstring("split"));
  for (ProfileRow& r : p.rows)
    if (r.layer == 3) r.split = "channel:2";
  CHECK_THAT(head(120), ContainsSubstring("split") && ContainsSubstring("exposed_us"));
  CHECK_THAT(table(p, {.width = 120}),
             ContainsSubstring(" batch:2 ") && ContainsSubstring(" channel:2 "));
  CHECK_THAT(head(80), !ContainsSubstring("split"));
}

TEST_CASE("long names lose letters, but neither numbers nor what tells them apart") {
  Profile p = made_profile_on_machine(2);
  p.rows[0].name = "classifier.1.reshard", p.rows[3].name = "classifier.2.reshard";
  p.rows[5].name = std::string(60, '7');
  const std::string all = table(p, {.width = 80});
  CHECK_THAT(all, ContainsSubstring("\nclas.1.reshard ") || ContainsSubstring("\nclass.1.reshar "));
  CHECK_THAT(all, ContainsSubstring("\nclas.2.reshard ") || ContainsSubstring("\nclass.2.reshar "));
  CHECK_THAT(all, ContainsSubstring("\n77777777"));
}

TEST_CASE("rows are ordered and the rest is summed up") {
  using Names = std::vector<std::string>;
  const Profile p = made_profile();
  const std::string deep = "layer4.2.bottleneck.downsample.conv";
  TableOptions options{.width = 300};
  CHECK(names(p, options) == Names{"conv1", "relu1", deep.substr(0, 35) + " Conv2D", "(trainer)"});
  options.sort = TableOptions::Sort::name;
  CHECK(names(p, options)[0] == "(trainer)");
  options.sort = TableOptions::Sort::time;
  CHECK(names(p, options)[3] == "(trainer)");
  options.top = 1;
  CHECK(names(p, options) == Names{"conv1", "(3 more)"});
  options.top = 4;
  CHECK(names(p, options).size() == 4);
  options.top = 1;
  CHECK_THAT(table(p, options), ContainsSubstring(" 3190.0 53.2"));    // 750 + 2400 + 40 of 6000
  CHECK_THAT(table(p, options), ContainsSubstring(" 1140.0 1250.0"));  // forward, input gradient
}

TEST_CASE("the most wasteful rows come first, and stay among the top") {
  Profile p = made_profile_on_machine();
  p.rows.clear();
  // At least 100, 0 and 10 us.
  p.rows.push_back(test::made_row(1, "busy", "Linear", Pass::forward, 110, {20e6, 1}));
  p.rows.push_back(test::made_row(2, "idle", "ReLU", Pass::forward, 20, {}));
  p.rows.push_back(test::made_row(3, "slow", "ReLU", Pass::forward, 50, {2e6, 1}));
  using Names = std::vector<std::string>;
  TableOptions options{.width = 60, .sort = Sort::wasted};
  CHECK(names(p, options) == Names{"slow", "idle", "busy"});
  options.top = 1;
  CHECK(names(p, options) == Names{"slow", "(2 more)"});
  options.sort = Sort::order;  // by time, then
  CHECK(names(p, options) == Names{"busy", "(2 more)"});
  p.machine.reset();
  CHECK_THROWS_WITH(table(p, {.sort = Sort::wasted}), ContainsSubstring("ceilings"));
}

TEST_CASE("a row above its roof is marked, and explained below") {
  Profile p = made_profile_on_machine();
  p.rows.clear();
  const auto add = [&](const char* name, double us, const char* algorithm) {
    p.rows.push_back(test::made_row(int(p.rows.size()), name, "Conv2D", Pass::forward, us,
                                    {10e6, 1e3}));  // 50 us at least
    p.rows.back().algorithm = algorithm;
  };
  add("below", 60, "jit");
  add("chance", 49, "jit");
  CHECK_THAT(table(p), !ContainsSubstring("^"));
  add("winograd", 40, "wino");
  add("faster", 25, "wino");
  add("wonder", 20, "jit");
  const std::string s = table(p, {.width = 200});
  CHECK_THAT(s, ContainsSubstring(" 83  compute") && ContainsSubstring(" 102  compute"));
  CHECK_THAT(s, ContainsSubstring(" 125^ compute") && ContainsSubstring(" 250^ compute"));
  CHECK_THAT(s,
             ContainsSubstring("^ above the roof: 2 rows, most of all faster forward (200 %); "
                               "Winograd: FLOPs are counted as those of a direct convolution\n"));
  CHECK_THAT(s, ContainsSubstring("^ above the roof: wonder forward (250 %), unexplained\n"));
  // A pass that runs forward again has forward's algorithm.
  p.rows.clear();
  add("excused", 25, "wino|jit|jit"), p.rows.back().pass = Pass::recompute;
  CHECK_THAT(table(p, {.width = 200}), ContainsSubstring("Winograd"));
  p.rows.clear();
  add("wonder", 20, "jit|jit|wino"), p.rows.back().pass = Pass::recompute;
  CHECK_THAT(table(p, {.width = 200}), ContainsSubstring("unexplained"));
  p.rows.clear();
  add("spectrum", 20, "cudnn:1|cudnn:2:fft|cudnn:3"), p.rows.back().pass = Pass::input_grad;
  CHECK_THAT(table(p, {.width = 200}), ContainsSubstring("FFT: FLOPs are counted"));
}

TEST_CASE("each pass has its own of three algorithms") {
  CHECK(algorithm_of("a|b|c", Pass::forward) == "a");
  CHECK(algorithm_of("a|b|c", Pass::input_grad) == "b");
  CHECK(algorithm_of("a|b|c", Pass::weight_grad) == "c");
  CHECK(algorithm_of("a|b|c", Pass::recompute) == "a");
  CHECK(algorithm_of("a|b|c", Pass::update) == "a|b|c");
  for (const char* all : {"", "a", "a|b", "a|b|c|d"})
    for (const Pass p : {Pass::forward, Pass::weight_grad}) CHECK(algorithm_of(all, p) == all);
}

TEST_CASE("only what nothing explains is red") {
  Profile p = made_profile_on_machine();
  p.rows.clear();
  for (const auto& [us, algorithm] : {std::pair(25.0, "wino"), {20.0, "jit"}}) {
    p.rows.push_back(
        test::made_row(int(p.rows.size()), algorithm, "Conv2D", Pass::forward, us, {10e6, 1e3}));
    p.rows.back().algorithm = algorithm;
  }
  const std::string coloured = table(p, {.colour = true});
  CHECK_THAT(coloured, ContainsSubstring("\033[31m250^\033[0m"));
  CHECK_THAT(coloured, !ContainsSubstring("\033[31m200^"));
}

TEST_CASE("orders and groups have names") {
  CHECK(parse_sort("order") == Sort::order);
  CHECK(parse_sort("time") == Sort::time);
  CHECK(parse_sort("wasted") == Sort::wasted);
  CHECK(parse_sort("name") == Sort::name);
  CHECK_THROWS_WITH(parse_sort("size"), ContainsSubstring("'size'") && ContainsSubstring("wasted"));
  CHECK(parse_group("layer") == Group::layer);
  CHECK(parse_group("type") == Group::type);
  CHECK(parse_group("stage") == Group::stage);
  CHECK_THROWS_WITH(parse_group("size"), ContainsSubstring("'size'") && ContainsSubstring("stage"));
}

TEST_CASE("top rows stay in order, and the first of equals stays") {
  Profile p;
  p.steps = 1;
  for (int i = 0; i < 4; ++i)
    p.rows.push_back(test::made_row(i, std::string(1, char('a' + i)), "ReLU", Pass::forward,
                                    i == 3 ? 20 : 10, {}));
  CHECK(names(p, {.top = 2}) == std::vector<std::string>{"a", "d", "(2 more)"});
}

TEST_CASE("an empty profile has a table") {
  CHECK_THAT(table(Profile()), ContainsSubstring("layer") && ContainsSubstring("unaccounted"));
}
