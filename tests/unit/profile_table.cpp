// The table of a profile: exact text for numbers made by hand.
#include "catch.hpp"
#include "profile_made.hpp"

#include <lamina/profile/table.hpp>

#include <sstream>

using namespace lamina;
using test::made_profile;

namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

/// The names in the first column, the header and the footer apart.
std::vector<std::string> names(const Profile& profile, const TableOptions& options) {
  std::vector<std::string> first;
  for (const auto& line : lines(table(profile, options))) {
    if (line.rfind("sum_layers", 0) == 0) break;
    first.push_back(line.substr(0, line.find("  ")));
  }
  first.erase(first.begin());
  return first;
}

}  // namespace

TEST_CASE("the table of one rank at 120 columns") {
  CHECK("\n" + table(made_profile()) == R"(
layer                        type   fwd_us dx_us  dw_us upd_us total_us    % gflop mbytes     ai gflops algo
conv1                        Conv2D 1200.2     - 1200.2   10.5   2411.0 40.2 0.472 25.954  18.19    196 jit:avx512_core
relu1                        ReLU    300.0 450.0      -      -    750.0 12.5 0.002 12.800   0.12      2
layer4.2.bott..wnsample.conv Conv2D  800.0 800.0  800.0      -   2400.0 40.0 3.000  7.500 400.00   1250 wino:avx512_core
(trainer)                             40.0     -      -      -     40.0  0.7     -      -      -      -
sum_layers        5601.0 us   kernels 5601.0, waiting 0.0
end_to_end        6000.0 us   mean of 10 steps
unaccounted          6.7 %
bytes: compulsory, each operand once; 1 FMA = 2 FLOP
)");
}

TEST_CASE("the table of two ranks at 80 columns") {
  CHECK("\n" + table(made_profile(2), {.width = 80}) == R"(
layer                 fwd_us dx_us  dw_us upd_us exposed_us total_us    % gflops
conv1                 1200.2     - 1200.2   10.5      100.0   2511.0 41.8    196
relu1                  300.0 450.0      -      -          -    750.0 12.5      2
layer4.2.b..mple.conv  800.0 800.0  800.0      -      100.0   2500.0 41.7   1250
(trainer)               40.0     -      -      -          -     40.0  0.7      -
sum_layers        5801.0 us   kernels 5601.0, waiting 200.0
end_to_end        6000.0 us   mean of 10 steps on 2 ranks
unaccounted          3.3 %
communication 2000.0 us, 90.0 % of it behind kernels
slowest rank 1: kernels 8401.5 us, imbalance 1.500 (max / mean)
bytes: compulsory, each operand once; 1 FMA = 2 FLOP
)");
}

TEST_CASE("the table of two ranks at 100 columns") {
  CHECK("\n" + table(made_profile(2), {.width = 100}) == R"(
layer                fwd_us dx_us  dw_us upd_us comm_us exposed_us total_us    % gflop     ai gflops
conv1                1200.2     - 1200.2   10.5  1000.0      100.0   2511.0 41.8 0.472  18.19    196
relu1                 300.0 450.0      -      -       -          -    750.0 12.5 0.002   0.12      2
layer4.2...mple.conv  800.0 800.0  800.0      -  1000.0      100.0   2500.0 41.7 3.000 400.00   1250
(trainer)              40.0     -      -      -       -          -     40.0  0.7     -      -      -
sum_layers        5801.0 us   kernels 5601.0, waiting 200.0
end_to_end        6000.0 us   mean of 10 steps on 2 ranks
unaccounted          3.3 %
communication 2000.0 us, 90.0 % of it behind kernels
slowest rank 1: kernels 8401.5 us, imbalance 1.500 (max / mean)
bytes: compulsory, each operand once; 1 FMA = 2 FLOP
)");
}

TEST_CASE("the wide table has every column") {
  CHECK("\n" + table(made_profile(2), {.wide = true}) == R"(
layer                               type   split   pass        time_us std_us comm_us exposed_us comm_bytes    %  imb gflop mbytes     ai gflops   gbs algo             ws_mb what
conv1                               Conv2D batch:2 forward      1200.2      -       -          -          - 20.0 1.50 0.236 12.883  18.32    197 10.73 jit:avx512_core  1.500 64 7x7 s2 p3
conv1                               Conv2D batch:2 weight_grad  1200.2      -  1000.0      100.0      37632 21.7 1.50 0.236 12.883  18.32    197 10.73 jit:avx512_core  1.500 64 7x7 s2 p3
conv1                               Conv2D batch:2 update         10.5      -       -          -          -  0.2 1.50 0.000  0.188   0.20      4 17.92                      -
relu1                               ReLU   batch:2 forward       300.0      -       -          -          -  5.0 1.50 0.001  6.400   0.12      3 21.33                      -
relu1                               ReLU   batch:2 input_grad    450.0      -       -          -          -  7.5 1.50 0.001  6.400   0.12      2 14.22                      -
layer4.2.bottleneck.downsample.conv Conv2D batch:2 forward       800.0      -       -          -          - 13.3 1.50 1.000  2.500 400.00   1250  3.13 wino:avx512_core     -
layer4.2.bottleneck.downsample.conv Conv2D batch:2 input_grad    800.0      -       -          -          - 13.3 1.50 1.000  2.500 400.00   1250  3.13 wino:avx512_core     -
layer4.2.bottleneck.downsample.conv Conv2D batch:2 weight_grad   800.0      -  1000.0      100.0      37632 15.0 1.50 1.000  2.500 400.00   1250  3.13 wino:avx512_core     -
(trainer)                                          forward        40.0      -       -          -          -  0.7 1.50     -      -      -      -     -                      -
sum_layers        5801.0 us   kernels 5601.0, waiting 200.0
end_to_end        6000.0 us   mean of 10 steps on 2 ranks
unaccounted          3.3 %
communication 2000.0 us, 90.0 % of it behind kernels
slowest rank 1: kernels 8401.5 us, imbalance 1.500 (max / mean)
bytes: compulsory, each operand once; 1 FMA = 2 FLOP
)");
}

TEST_CASE("the table keeps to its width, and keeps the columns that matter") {
  for (const int ranks : {1, 2})
    for (int width = 70; width < 160; ++width)
      for (const auto& line : lines(table(made_profile(ranks), {.width = width}))) {
        INFO(line);
        CHECK(int(line.size()) <= width);
      }
  const std::string narrow = lines(table(made_profile(2), {.width = 10})).front();
  for (const char* head : {"layer", "fwd_us", "dx_us", "dw_us", "upd_us", "total_us", "%"})
    CHECK_THAT(narrow, ContainsSubstring(head));
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
  CHECK(parse_sort("time") == TableOptions::Sort::time);
  CHECK_THROWS_WITH(parse_sort("size"), ContainsSubstring("'size'") && ContainsSubstring("name"));
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
