// Searchers: that they find the best selection of small problems, keep to memory and ties, are
// never worse than what they begin with, and give the same result for the same seed.
#include "catch.hpp"
#include "plan_search_made.hpp"

#include <cmath>
#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// A problem whose step is no sum, with the graph that it is made of.
struct Problem {
  CostGraph graph;
  SearchProblem search;

  Problem(const Ends& ends, const Costs& costs, Draw& draw, double memory = infinite)
      : graph(made(ends, costs, draw)) {
    double limit = 0;
    for (const auto& hidden : graph.hidden) limit += hidden[0] / 2;
    search = {.graph = graph, .step = overlapping(graph, limit), .memory = memory};
  }
  Problem(const Problem&) = delete;

  /// The part of the bytes that the options take that take the most.
  void limit(double part) {
    search.memory = 0;
    for (const auto& bytes : graph.bytes)
      search.memory += part * *std::max_element(bytes.begin(), bytes.end());
  }
  double best() const {
    return least(graph, [&](const Selection& c) {
      return bytes(c) <= search.memory ? search.step(c) : infinite;
    });
  }
  double bytes(const Selection& c) const {
    double sum = 0;
    for (std::size_t v = 0; v < c.size(); ++v) sum += graph.bytes[v][std::size_t(c[v])];
    return sum;
  }
};

std::vector<Ends> small_shapes(Draw& draw) {
  return {chain(7), tree(7, draw), residual(3, 1, true), inception(1, {1, 2, 1}),
          dense(6, 0.6, draw)};
}

Found find(std::string_view name, const SearchProblem& problem, const SearchOptions& options = {}) {
  return make_searcher(name, options)->search(problem);
}

SearchOptions quick(std::uint64_t seed, bool seeded) {
  return {.seed = seed,
          .seeded = seeded,
          .swarm = {.particles = 20, .iterations = 30},
          .mcmc = {.iterations = 1000}};
}

std::string why(const SearchProblem& problem) {
  try {
    find("exact", problem);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("all selections tried, the best is found, or the best sum without a step") {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    Draw draw(seed);
    for (const Ends& ends : small_shapes(draw)) {
      Problem p(ends, {.options = 3}, draw);
      if (seed) p.limit(0.6);
      const Found found = find("brute", p.search);
      CHECK(found.seconds == p.best());
      if (std::isfinite(found.seconds)) CHECK(p.search.step(found.selection) == found.seconds);
      p.search.step = {};
      const double sum = least(p.graph, [&](const Selection& c) {
        return p.bytes(c) <= p.search.memory ? by_formula(p.graph, c, 0, 0) : infinite;
      });
      if (std::isfinite(sum)) CHECK(find("brute", p.search).seconds == Approx(sum).epsilon(1e-12));
    }
  }
  const CostGraph graph{.seconds = {{3, 1}, {1, 2, 4}}};
  CHECK(find("brute", {.graph = graph}).steps_tried == 6);
}

TEST_CASE("the exact search finds the best of small problems whose step is no sum") {
  int problems = 0;
  double worst = 1, worst_swept = 1;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Draw draw(100 + seed);
    for (const Ends& ends : small_shapes(draw)) {
      Problem p(ends, {.options = 4, .alike = true}, draw);
      // What is hidden may also take longer than all else: no overlap has that in its sum.
      if (seed % 2)
        p.search.step = [&](const Selection& c) {
          const double all = by_formula(p.graph, c, 0, 0), shown = by_formula(p.graph, c, 1, 0);
          return std::max(shown, 3 * (all - shown));
        };
      const double best = p.best();
      worst = std::max(worst, find("exact", p.search).seconds / best);
      const SearchOptions swept{.exact = {.most_steps = 0}};
      worst_swept = std::max(worst_swept, find("exact", p.search, swept).seconds / best);
      ++problems;
    }
  }
  CHECK(problems == 30);
  CAPTURE(worst, worst_swept);
  CHECK(worst < 1.02);
  CHECK(worst_swept > 1.05);  // so it is the improving that finds the rest
}

TEST_CASE("the exact search comes close to the best that fits into memory") {
  int problems = 0, best_found = 0;
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Draw draw(200 + seed);
    for (const Ends& ends : small_shapes(draw)) {
      Problem p(ends, {.options = 4, .alike = true}, draw);
      p.limit(0.5);
      const double best = p.best();
      if (!std::isfinite(best)) continue;
      // That memory is short may as well be said by the step alone.
      if (seed % 2)
        p.search.step = [&p, memory = std::exchange(p.search.memory, infinite),
                         step = p.search.step](const Selection& c) {
          return p.bytes(c) <= memory ? step(c) : infinite;
        };
      const Found found = find("exact", p.search);
      CHECK(p.bytes(found.selection) <= p.search.memory);
      CHECK(p.search.step(found.selection) == found.seconds);
      worst = std::max(worst, found.seconds / best);
      best_found += found.seconds < best * (1 + 1e-12);
      ++problems;
    }
  }
  CAPTURE(problems, best_found, worst);
  CHECK(worst < 1.06);
  CHECK(best_found >= problems * 8 / 10);
}

TEST_CASE("a price for memory leads to what fits, and no further than it must") {
  // Ten vertices alike: each byte less costs a second more. Four of them can have the fast option.
  CostGraph graph;
  for (int v = 0; v < 10; ++v) {
    graph.seconds.push_back({2.0 + v / 10.0, 1});
    graph.bytes.push_back({1, 2});
  }
  const Found found = find("exact", {.graph = graph, .memory = 14, .simple = Selection(10, 1)},
                           {.exact = {.most_steps = 0}});
  CHECK(found.selection == Selection{0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(found.seconds == Approx(2 + 2.1 + 2.2 + 2.3 + 2.4 + 2.5 + 4));
}

TEST_CASE("both ends of an edge change together where neither gains alone") {
  CostGraph graph{.seconds = {{1, 1}, {1, 1}, {1, 1}},
                  .edges = {{0, 1, {0, 0, 0, 0}}, {1, 2, {0, 0, 0, 0}}}};
  const auto step = [](const Selection& c) {
    return c == Selection{0, 1, 1} ? 1.0 : 2.0 + c[0] + c[1] + c[2];
  };
  CHECK(find("exact", {.graph = graph, .step = step}).selection == Selection{0, 1, 1});
  graph.edges.pop_back();
  CHECK(find("exact", {.graph = graph, .step = step}).selection == Selection{0, 0, 0});
}

TEST_CASE("several vertices change together where no two of them gain") {
  CostGraph graph{.seconds = {{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}};
  for (int v = 0; v < 4; ++v) graph.edges.push_back({v, v + 1, {0, 9, 9, 0}});
  const auto step = [](const Selection& c) {
    int ones = 0;
    for (const int option : c) ones += option;
    return ones == 5 ? 1.0 : 2.0 + ones;
  };
  CHECK(find("exact", {.graph = graph, .step = step}).selection == Selection{1, 1, 1, 1, 1});
  graph.edges.pop_back();
  CHECK(find("exact", {.graph = graph, .step = step}).selection == Selection{0, 0, 0, 0, 0});
}

TEST_CASE("a search by the step stops where it is told to") {
  Draw draw(5);
  const Problem p(residual(5, 2), {.options = 6, .alike = true}, draw);
  const auto swept = find("exact", p.search, {.exact = {.most_steps = 0}}).steps_tried;
  CHECK(swept <= 7);
  CHECK(find("exact", p.search, {.exact = {.most_steps = 100}}).steps_tried == swept + 100);
}

TEST_CASE("swarm and chain find the best of small problems from anywhere") {
  int swarm = 0, chain = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Draw draw(300 + seed);
    for (const Ends& ends : small_shapes(draw)) {
      Problem p(ends, {.options = 3, .alike = true}, draw);
      if (seed % 2) p.limit(0.7);
      const double best = p.best();
      const Found by_swarm = find("swarm", p.search, {.seed = seed, .seeded = false});
      const Found by_chain = find("mcmc", p.search, {.seed = seed, .seeded = false});
      CHECK(by_swarm.seconds < 1.1 * best);
      CHECK(by_chain.seconds < 1.1 * best);
      swarm += by_swarm.seconds == best;
      chain += by_chain.seconds == best;
    }
  }
  CAPTURE(swarm, chain);
  CHECK(swarm >= 16);
  CHECK(chain >= 18);
}

TEST_CASE("on a long chain, what draws particles and what cools the chain does its part") {
  Draw draw(1000);
  const Problem p(chain(40), {.options = 5, .alike = true}, draw);
  const double best = find("exact", p.search).seconds;
  const auto worse = [&](std::string_view name, SearchOptions o) {
    o.seeded = false;
    return find(name, p.search, o).seconds / best;
  };
  // Random selections alone come to 1.7, where nothing strays or is drawn.
  CHECK(worse("swarm", {}) < 1.15);
  CHECK(worse("swarm", {.swarm = {.craziness = 0}}) < 1.25);
  CHECK(worse("swarm", {.swarm = {.cognitive = 0, .craziness = 0}}) > 1.3);
  CHECK(worse("swarm", {.swarm = {.social = 0, .craziness = 0}}) > 1.5);
  CHECK(worse("mcmc", {}) < 1.02);
  CHECK(worse("mcmc", {.mcmc = {.temperature = 8}}) > 1.3);
  // A temperature that is none only takes what is not slower, and stops at the first hill.
  CHECK(worse("mcmc", {.mcmc = {.temperature = 1e-9}}) > worse("mcmc", {}));
}

TEST_CASE("searches that are seeded look around what the exact search has found") {
  // One place in a flat land: nobody comes there who does not begin beside it.
  const CostGraph graph{.seconds = std::vector<std::vector<double>>(40, {2, 2, 1})};
  Selection place(40, 2);
  place[7] = 0;
  const SearchProblem problem{.graph = graph, .step = [&](const Selection& c) {
                                return c == place ? 1.0 : c == Selection(40, 2) ? 2.0 : 3.0;
                              }};
  for (const auto name : {"swarm", "mcmc"}) {
    SearchOptions options{.exact = {.most_steps = 0}, .swarm = {.iterations = 20}};
    options.swarm.craziness = 1;
    CHECK(find(name, problem, options).selection == place);
    options.seeded = false;
    CHECK(find(name, problem, options).seconds == 3);
  }
}

TEST_CASE("the best of what was found so far is improved first") {
  const CostGraph graph{.seconds = std::vector<std::vector<double>>(6, {1, 1, 1})};
  const Selection good(6, 1), bad(6, 2);
  Selection beside = good;
  beside[3] = 2;
  const SearchProblem problem{
      .graph = graph,
      .step = [&](const Selection& c) { return c == beside ? 1.0
                                               : c == good ? 2.0
                                                           : 3.0; },
      .seeds = {bad, good}};
  CHECK(find("exact", problem, {.exact = {.starts = 1}}).selection == beside);
  CHECK(find("exact", problem, {.exact = {.starts = 0}}).selection == good);
}

TEST_CASE("a change that gains nothing is not made") {
  const CostGraph graph{.seconds = {{1, 1}, {1, 1}}, .edges = {{0, 1, {0, 0, 0, 0}}}};
  const Found found = find("exact", {.graph = graph, .step = [](const Selection&) { return 1.0; }});
  CHECK(found.selection == Selection{0, 0});
  CHECK(found.steps_tried == 1 + 2 + 1);  // the simple one, each vertex alone, and both
}

TEST_CASE("no search is worse than what it begins with") {
  for (const auto name : {"exact", "swarm", "mcmc", "brute"})
    for (const bool seeded : {false, true}) {
      if (!seeded && name == std::string("swarm")) continue;  // it begins with none
      Draw draw(400);
      Problem p(residual(3, 1), {.options = 3, .alike = true}, draw);
      // The step knows of a selection that the graph knows nothing of.
      const Selection good = {2, 1, 2, 0, 1, 2, 0};
      REQUIRE(good.size() == p.graph.size());
      p.search.step = [&, step = p.search.step](const Selection& c) {
        return c == good ? 0.125 : step(c);
      };
      CAPTURE(name, seeded);
      SearchProblem seeded_problem = p.search;
      seeded_problem.seeds = {Selection(7, 0), good};
      CHECK(find(name, seeded_problem, quick(1, seeded)).selection == good);
      p.search.simple = good;
      CHECK(find(name, p.search, quick(1, seeded)).seconds == 0.125);
    }
}

TEST_CASE("what is found is what the step says of it, and the same for the same seed") {
  Draw draw(500);
  const Problem p(inception(2, {1, 2, 1}), {.options = 5, .alike = true}, draw);
  std::int64_t calls = 0;
  SearchProblem counted = p.search;
  counted.step = [&](const Selection& c) { return ++calls, p.search.step(c); };
  for (const auto name : {"exact", "swarm", "mcmc", "fixed"})
    for (const bool seeded : {false, true}) {
      CAPTURE(name, seeded);
      calls = 0;
      const Found found = find(name, counted, quick(7, seeded));
      CHECK(found.steps_tried == calls);
      CHECK(found.seconds == p.search.step(found.selection));
      REQUIRE_FALSE(found.convergence.empty());
      CHECK(std::ranges::is_sorted(found.convergence, std::greater()));
      CHECK(found.convergence.back() == found.seconds);
      const Found again = find(name, p.search, quick(7, seeded));
      CHECK(again.selection == found.selection);
      CHECK(again.convergence == found.convergence);
      CHECK(again.steps_tried == found.steps_tried);
    }
  for (const auto name : {"swarm", "mcmc"})
    CHECK(find(name, p.search, quick(7, false)).convergence !=
          find(name, p.search, quick(8, false)).convergence);
  CHECK(find("swarm", p.search, quick(7, true)).convergence.size() == 31);
  CHECK(find("mcmc", p.search, quick(7, true)).convergence.size() == 1000);
  CHECK(find("swarm", p.search, quick(7, true)).convergence[0] <= find("exact", p.search).seconds);
}

TEST_CASE("of selections that take the same, the one most like the simple one is found") {
  Draw draw(600);
  Problem p(residual(2, 1), {.options = 3, .alike = true, .whole = 2}, draw);
  p.search.simple = {1, 2, 0, 1, 2};
  const double best = p.best();
  int most = 0;
  const auto like = [&](const Selection& c) {
    int count = 0;
    for (std::size_t v = 0; v < c.size(); ++v) count += c[v] == p.search.simple[v];
    return count;
  };
  for_each_selection(p.graph, [&](const Selection& c) {
    if (p.search.step(c) == best) most = std::max(most, like(c));
  });
  CHECK(like(find("brute", p.search).selection) == most);
  p.search.step = [](const Selection&) { return 1.0; };
  for (const auto name : searcher_names())
    CHECK(find(name, p.search, quick(1, true)).selection == p.search.simple);
}

TEST_CASE("tied vertices take the same option") {
  const std::vector<int> groups = {0, 1, 1, 2, 0, 2, 1};
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Draw draw(700 + seed);
    Problem p(seed % 2 ? chain(7) : residual(3, 1), {.options = 4, .alike = true}, draw);
    if (seed >= 2) p.limit(0.7);
    p.search.tied = groups;
    p.search.simple = {3, 1, 1, 2, 3, 2, 1};
    p.search.seeds = {{0, 2, 2, 1, 0, 1, 2}};
    const double best = least(p.graph, [&](const Selection& c) {
      for (std::size_t v = 0; v < c.size(); ++v)
        for (std::size_t u = 0; u < v; ++u)
          if (groups[u] == groups[v] && c[u] != c[v]) return infinite;
      return p.bytes(c) <= p.search.memory ? p.search.step(c) : infinite;
    });
    for (const auto name : {"exact", "swarm", "mcmc", "brute"}) {
      const Found found = find(name, p.search, quick(seed, true));
      CHECK(found.seconds == best);
      CHECK_NOTHROW(tied(found.selection, groups));
      CHECK(p.search.step(found.selection) == best);
    }
    CHECK(find("fixed", p.search).selection == p.search.simple);
    CHECK(find("brute", p.search).steps_tried <= 64);
  }
}

TEST_CASE("where nothing fits, what takes the fewest bytes is named") {
  Draw draw(800);
  Problem p(residual(3, 1), {.options = 3, .alike = true}, draw);
  p.search.memory = 1e-9;
  Selection least_bytes;
  for (const auto& bytes : p.graph.bytes)
    least_bytes.push_back(int(std::ranges::min_element(bytes) - bytes.begin()));
  const auto nothing = [](const Selection&) { return infinite; };
  for (const bool by_step : {false, true}) {
    if (by_step) p.search.memory = infinite, p.search.step = nothing;
    for (const auto name : {"exact", "swarm", "mcmc", "brute"})
      for (const bool seeded : {false, true}) {
        CAPTURE(name, seeded, by_step);
        const Found found = find(name, p.search, quick(1, seeded));
        CHECK(found.seconds == infinite);
        CHECK(found.selection == least_bytes);
        CHECK((found.steps_tried == 0) == !by_step);
      }
    const Found fixed = find("fixed", p.search);
    CHECK(fixed.seconds == infinite);
    CHECK(fixed.selection == Selection(7, 0));
  }
}

TEST_CASE(
    "where nothing is possible by the graph, what takes the fewest bytes is named all the same") {
  const CostGraph graph{.seconds = {{1, 1}, {1, 1}},
                        .bytes = {{5, 3}, {2, 4}},
                        .edges = {{0, 1, {infinite, infinite, infinite, infinite}}}};
  const SearchOptions none{.seeded = false,
                           .swarm = {.particles = 1, .iterations = 0, .craziness = 0},
                           .mcmc = {.iterations = 0}};
  for (const auto name : {"exact", "swarm", "mcmc", "brute"}) {
    CAPTURE(name);
    const SearchProblem problem{.graph = graph, .simple = {0, 1}};
    CHECK(find(name, problem, none).selection == Selection{1, 0});
    CHECK(find(name, problem, none).seconds == infinite);
  }
}

TEST_CASE("what alone fits is found") {
  Draw draw(900);
  Problem p(chain(6), {.options = 4, .alike = true}, draw);
  double bytes = 0;
  for (const auto& of : p.graph.bytes) bytes += *std::ranges::min_element(of);
  p.search.memory = bytes * (1 + 1e-12);
  for (const auto name : {"exact", "swarm", "mcmc", "brute"})
    CHECK(find(name, p.search, quick(1, false)).seconds == p.best());
}

TEST_CASE("a fixed selection is evaluated and no other") {
  const CostGraph graph{.seconds = {{3, 1}, {1, 2}}};
  const Found found = find("fixed", {.graph = graph}, {.fixed = {0, 1}});
  CHECK(found.selection == Selection{0, 1});
  CHECK(found.seconds == 5);
  CHECK(found.steps_tried == 1);
  CHECK_THROWS_WITH(find("fixed", {.graph = graph}, {.fixed = {0, 2}}),
                    "the fixed selection: vertex 1 has no option 2: expected 0 to 1");
}

TEST_CASE("vertices with one option, and graphs without vertices, are found as they are") {
  for (const auto name : searcher_names()) {
    CHECK(find(name, {.graph = {.seconds = {{2}, {3}}}}, quick(1, true)).seconds == 5);
    CHECK(find(name, {}, quick(1, false)).selection.empty());
  }
}

TEST_CASE("searchers are known by name, and say what they cannot do") {
  CHECK(searcher_names() ==
        std::vector<std::string_view>{"exact", "swarm", "mcmc", "brute", "fixed"});
  for (const auto name : searcher_names()) CHECK(make_searcher(name)->name() == name);
  CHECK_THROWS_WITH(make_searcher("exat"),
                    "search 'exat' is not known (did you mean exact?): expected exact, swarm, "
                    "mcmc, brute or fixed");
  CHECK_THROWS_WITH(make_searcher("simplex-method"),
                    "search 'simplex-method' is not known: expected exact, swarm, mcmc, brute or "
                    "fixed");
  CHECK_THROWS_WITH(make_searcher("swarm", {.swarm = {.particles = 0}}),
                    "swarm: expected at least 1 particle, got 0");
  CHECK_THROWS_WITH(make_searcher("mcmc", {.mcmc = {.temperature = 0}}),
                    "mcmc: expected a temperature above 0, got 0");
  CHECK_THROWS_WITH(make_searcher("exact", {.exact = {.overlaps = {2}}}),
                    "exact: overlap: expected 0 to 1, got 2");

  const CostGraph graph{.seconds = std::vector<std::vector<double>>(16, {1, 1, 1})};
  CHECK_THROWS_WITH(find("brute", {.graph = graph}),
                    "brute: there are 43046721 selections: expected at most 10000000");
  Draw draw(1);
  const CostGraph thick = made(dense(8, 1, draw), {.options = 4, .alike = true}, draw);
  CHECK_THROWS_WITH(find("exact", {.graph = thick}, {.most_entries = 1000}),
                    ContainsSubstring("too dense for an exact search"));
  CHECK_NOTHROW(find("mcmc", {.graph = thick}, {.seeded = false, .most_entries = 1000}));
}

TEST_CASE("a problem that is none says why") {
  const CostGraph graph{.seconds = {{1, 2}, {1, 2}}};
  CHECK(why({.graph = {.seconds = {{1}, {}}}}) == "vertex 1: no options");
  CHECK(why({.graph = graph, .simple = {0}}) == "simple has options of 1 vertices, expected 2");
  CHECK(why({.graph = graph, .seeds = {{0, 0}, {0, 2}}}) ==
        "seed 1: vertex 1 has no option 2: expected 0 to 1");
  CHECK(why({.graph = graph, .memory = 5}) == "memory is limited, but the graph has no bytes");
  CHECK(why({.graph = graph, .memory = -1}) == "memory: expected at least 0 bytes, got -1");
  CHECK(why({.graph = graph, .simple = {0, 1}, .tied = {0, 0}}) ==
        "vertices 0 and 1 are tied: options 0 and 1 differ");
  CHECK(why({.graph = graph, .tied = {0}}) == "ties of 1 vertices, expected 2");
  CHECK(why({.graph = graph, .step = [](const Selection&) { return std::nan(""); }}) ==
        "a step of nan seconds: expected at least 0");
  CHECK(why({.graph = graph, .step = [](const Selection&) { return -1.0; }}) ==
        "a step of -1 seconds: expected at least 0");
}
