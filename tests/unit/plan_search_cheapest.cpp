// The cheapest selection of a graph by elimination, against all selections that there are; vertices
// tied to groups; graphs that are refused.
#include "catch.hpp"
#include "plan_search_made.hpp"

#include <lamina/plan/detail/search.hpp>

#include <cmath>
#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Two graphs side by side.
Ends beside(Ends a, const Ends& b) {
  for (const auto& [from, to] : b.edges) a.edges.push_back({from + a.vertices, to + a.vertices});
  a.vertices += b.vertices;
  return a;
}

std::vector<std::pair<std::string, Ends>> shapes(Draw& draw) {
  Ends parallel = chain(4);
  for (const auto& edge : {std::pair(1, 0), std::pair(0, 1), std::pair(3, 2)})
    parallel.edges.push_back(edge);
  return {{"single", chain(1)},
          {"chain", chain(8)},
          {"tree", tree(8, draw)},
          {"residual", residual(3, 1)},
          {"nested residual", residual(4, 1, true)},
          {"long residual", residual(2, 3)},
          {"inception", inception(1, {1, 2, 2, 1})},
          {"inception with an edge past it", inception(2, {0, 1, 1})},
          {"parallel edges", parallel},
          {"apart", beside(chain(3), beside(chain(1), residual(1, 2)))},
          {"dense", dense(7, 0.6, draw)},
          {"complete", dense(6, 1, draw)}};
}

int like(const Selection& a, const Selection& b) {
  int count = 0;
  for (std::size_t v = 0; v < a.size(); ++v) count += a[v] == b[v];
  return count;
}

Selection random_selection(const CostGraph& graph, Draw& draw) {
  Selection to;
  for (int v = 0; v < int(graph.size()); ++v) to.push_back(draw.below(graph.options(v)));
  return to;
}

std::string why(const CostGraph& graph) {
  try {
    cheapest(graph);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the cheapest selection is that of all selections") {
  int graphs = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Draw draw(seed);
    for (const auto& [name, ends] : shapes(draw)) {
      const CostGraph graph = made(ends, {.options = 4, .impossible = seed == 5 ? 0.3 : 0}, draw);
      const CostWeights weights{0.25 * double(seed % 5), seed % 2 ? 0.7 : 0.0};
      CAPTURE(seed, name, weights.overlap);
      const Selection found = cheapest(graph, weights);
      const auto value = [&](const Selection& c) {
        return by_formula(graph, c, weights.overlap, weights.seconds_per_byte);
      };
      const double best = least(graph, value);
      CHECK((value(found) == best || std::abs(value(found) - best) <= 1e-12 * best));
      CHECK((seconds_of(graph, found, weights) == value(found) ||
             std::abs(seconds_of(graph, found, weights) - value(found)) <= 1e-12 * best));
      ++graphs;
    }
  }
  CHECK(graphs == 72);
}

TEST_CASE("of each option of a vertex, the cheapest selection that has it is known") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    Draw draw(seed);
    for (const auto& [name, ends] : shapes(draw)) {
      const CostGraph graph = made(ends, {.options = 3, .impossible = seed == 2 ? 0.3 : 0}, draw);
      const int vertex = draw.below(int(graph.size()));
      CAPTURE(seed, name, vertex);
      const auto found = detail::search::cheapest_with(vertex, graph, {.overlap = 0.5}, 1 << 20);
      REQUIRE(int(found.size()) == graph.options(vertex));
      for (int option = 0; option < graph.options(vertex); ++option) {
        const Selection& with = found[std::size_t(option)];
        const auto value = [&](const Selection& c) { return by_formula(graph, c, 0.5, 0); };
        const double best = least(graph, [&](const Selection& c) {
          return c[std::size_t(vertex)] == option ? value(c)
                                                  : std::numeric_limits<double>::infinity();
        });
        CHECK(with[std::size_t(vertex)] == option);
        CHECK((value(with) == best || std::abs(value(with) - best) <= 1e-12 * best));
      }
    }
  }
}

TEST_CASE("of selections that cost the same, the one most like the simple one is taken") {
  int ties = 0;
  for (std::uint64_t seed = 10; seed < 18; ++seed) {
    Draw draw(seed);
    for (const auto& [name, ends] : shapes(draw)) {
      CostGraph graph = made(ends, {.options = 4, .whole = 2}, draw);
      // Sums of thirds depend on the order of additions; they tie all the same.
      if (seed % 2)
        for (auto& seconds : graph.seconds)
          for (double& x : seconds) x /= 3;
      const Selection simple = random_selection(graph, draw);
      CAPTURE(seed, name);
      const Selection found = cheapest(graph, {.overlap = 0.5}, simple);
      const auto value = [&](const Selection& c) { return by_formula(graph, c, 0.5, 0); };
      const double best = least(graph, value);
      int most = 0, count = 0;
      for_each_selection(graph, [&](const Selection& c) {
        if (value(c) > best * (1 + 1e-12)) return;
        most = std::max(most, like(c, simple));
        ++count;
      });
      CHECK(value(found) <= best * (1 + 1e-12));
      CHECK(like(found, simple) == most);
      CHECK(cheapest(graph, {.overlap = 0.5}, simple) == found);
      ties += count > 1;
    }
  }
  CHECK(ties > 40);
}

TEST_CASE("where all costs are zero, the simple selection is the cheapest") {
  Draw draw(1);
  CostGraph graph = made(residual(3, 2), {.options = 3, .alike = true}, draw);
  for (auto* of : {&graph.seconds, &graph.hidden, &graph.bytes})
    for (auto& values : *of) std::ranges::fill(values, 0.0);
  for (auto& e : graph.edges) std::ranges::fill(e.seconds, 0.0);
  const Selection simple = random_selection(graph, draw);
  CHECK(cheapest(graph, {}, simple) == simple);
  CHECK(cheapest(graph) == Selection(graph.size(), 0));
}

TEST_CASE("a long chain's cheapest selection is that of the shortest path through its options") {
  Draw draw(2);
  const int n = 200, k = 20;
  const CostGraph graph = made(chain(n), {.options = k, .alike = true}, draw);
  std::vector<double> path(k);  // by option of the vertex so far
  for (int v = 0; v < n; ++v) {
    std::vector<double> to(k, v > 0 ? infinite : 0);
    for (int o = 0; o < k; ++o) {
      for (int before = 0; v > 0 && before < k; ++before)
        to[std::size_t(o)] =
            std::min(to[std::size_t(o)],
                     path[std::size_t(before)] +
                         graph.edges[std::size_t(v - 1)].seconds[std::size_t(before * k + o)]);
      to[std::size_t(o)] += graph.seconds[std::size_t(v)][std::size_t(o)] +
                            graph.hidden[std::size_t(v)][std::size_t(o)];
    }
    path = to;
  }
  CHECK(seconds_of(graph, cheapest(graph)) ==
        Approx(*std::ranges::min_element(path)).epsilon(1e-12));
}

TEST_CASE("what cannot be hidden is counted, and so is what memory is worth") {
  // By hand: option 1 takes less time, but more that can be hidden, and more bytes.
  const CostGraph graph{.seconds = {{5, 2}}, .hidden = {{1, 6}}, .bytes = {{10, 40}}};
  CHECK(seconds_of(graph, {0}) == 6);
  CHECK(seconds_of(graph, {1}, {.overlap = 0.5}) == 5);
  CHECK(seconds_of(graph, {1}, {.overlap = 1, .seconds_per_byte = 0.5}) == 22);
  CHECK(bytes_of(graph, {1}) == 40);
  CHECK(cheapest(graph) == Selection{0});                                            // 6, 8
  CHECK(cheapest(graph, {.overlap = 0.5}) == Selection{1});                          // 5.5, 5
  CHECK(cheapest(graph, {.overlap = 1, .seconds_per_byte = 0.2}) == Selection{0});   // 7, 10
  CHECK(cheapest(graph, {.overlap = 1, .seconds_per_byte = 0.09}) == Selection{1});  // 5.9, 5.6
  CHECK(cheapest(CostGraph{}).empty());
}

TEST_CASE("a graph without a possible selection has an infinite cost") {
  const CostGraph graph{.seconds = {{1, 2}, {1, 2}},
                        .edges = {{0, 1, {infinite, infinite, infinite, infinite}}}};
  CHECK(seconds_of(graph, cheapest(graph, {}, {1, 1})) == infinite);
}

TEST_CASE("a table that would be too large is refused") {
  Draw draw(3);
  const CostGraph graph = made(dense(12, 1, draw), {.options = 4, .alike = true}, draw);
  CHECK(cheapest(graph, {}, {}, 1 << 24).size() == 12);
  CHECK_THROWS_WITH(cheapest(graph, {}, {}, (1 << 24) - 1),
                    ContainsSubstring("vertex 0 and the 11 that it depends on make a table of "
                                      "1.67772e+07 entries: expected at most 1.67772e+07"));
  // A table of three vertices is enough for series and branches.
  for (const Ends& ends : {chain(30), residual(10, 3, true), inception(5, {1, 2, 3, 6})})
    CHECK_NOTHROW(cheapest(made(ends, {.options = 4, .alike = true}, draw), {}, {}, 4 * 4 * 4));
}

TEST_CASE("tied vertices cost what they cost together") {
  for (std::uint64_t seed = 20; seed < 24; ++seed) {
    Draw draw(seed);
    for (const auto& [name, ends] : shapes(draw)) {
      const CostGraph graph = made(ends, {.options = 3, .alike = true}, draw);
      std::vector<int> groups(graph.size());
      int count = 1;
      for (std::size_t v = 1; v < groups.size(); ++v)
        if ((groups[v] = draw.below(count + 1)) == count) ++count;
      CAPTURE(seed, name, groups);
      const CostGraph folded = tied(graph, groups);
      REQUIRE(folded.size() == std::size_t(count));
      const CostWeights weights{0.25, 0.5};
      for_each_selection(folded, [&](const Selection& c) {
        const Selection all = untied(c, groups);
        if (std::abs(seconds_of(folded, c, weights) - by_formula(graph, all, 0.25, 0.5)) > 1e-12)
          FAIL("costs differ");
        if (tied(all, groups) != c) FAIL("selections differ");
        if (std::abs(bytes_of(folded, c) - bytes_of(graph, all)) > 1e-12) FAIL("bytes differ");
      });
      const double best = least(graph, [&](const Selection& c) {
        for (std::size_t v = 0; v < c.size(); ++v)
          for (std::size_t u = 0; u < v; ++u)
            if (groups[u] == groups[v] && c[u] != c[v]) return infinite;
        return by_formula(graph, c, 0.25, 0.5);
      });
      const Selection found = untied(cheapest(folded, weights), groups);
      CHECK(by_formula(graph, found, 0.25, 0.5) == Approx(best).epsilon(1e-12));
    }
  }
}

TEST_CASE("ties that are none say why") {
  const CostGraph graph{.seconds = {{1, 2}, {1, 2, 3}, {1, 2}}};
  CHECK_THROWS_WITH(tied(graph, {0, 1, 1}), "vertices 1 and 2 are tied, but have 3 and 2 options");
  CHECK_THROWS_WITH(tied(graph, {0, 1}), "ties of 2 vertices, expected 3");
  CHECK_THROWS_WITH(tied(graph, {0, 2, 0}), "group 1 of tied vertices is empty");
  CHECK_THROWS_WITH(tied(graph, {0, -1, 0}),
                    "vertex 1: tied to group -1: expected groups from 0 without gaps");
  CHECK_THROWS_WITH(tied(Selection{0, 1, 1}, {0, 1, 0}),
                    "vertices 0 and 2 are tied: options 0 and 1 differ");
  CHECK_THROWS_WITH(untied({0, 1}, {0, 1, 2}), "group 2 has no option: there are 2");
}

TEST_CASE("a graph that is none names the vertex or the edge") {
  const CostGraph good{.seconds = {{1, 2}, {1, 2, infinite}},
                       .hidden = {{0, 0}, {1, 1, 1}},
                       .bytes = {{0, 0}, {1, 1, 1}},
                       .edges = {{0, 1, {1, 2, 3, 4, 5, infinite}}}};
  CHECK(why(good).empty());
  CostGraph bad = good;
  const auto refused = [&] {
    std::string message = why(bad);
    bad = good;
    return message;
  };
  bad.seconds[1].clear();
  CHECK(refused() == "vertex 1: no options");
  bad.seconds[1][2] = std::nan("");
  CHECK(refused() == "vertex 1, option 2: nan seconds: expected at least 0");
  bad.seconds[0][1] = -1;
  CHECK(refused() == "vertex 0, option 1: -1 seconds: expected at least 0");
  bad.hidden.pop_back();
  CHECK(refused() == "hidden: of 1 vertices, expected 2");
  bad.hidden[1].pop_back();
  CHECK(refused() == "vertex 1: hidden of 2 options, expected 3");
  bad.bytes[1][0] = infinite;
  CHECK(refused() == "vertex 1, option 0: bytes is inf: expected a finite number of at least 0");
  bad.edges[0].to = 2;
  CHECK(refused() == "edge 0 from vertex 0 to vertex 2: there are 2 vertices");
  bad.edges[0].from = -1;
  CHECK(refused() == "edge 0 from vertex -1 to vertex 1: there are 2 vertices");
  bad.edges[0].from = 1;
  CHECK(refused() == "edge 0 from vertex 1 to vertex 1: expected two vertices");
  bad.edges[0].seconds.pop_back();
  CHECK(refused() == "edge 0 from vertex 0 to vertex 1: 5 costs, expected 2 * 3");
  bad.edges[0].seconds[4] = std::nan("");
  CHECK(refused() ==
        "edge 0 from vertex 0 to vertex 1, options 1 and 1: nan seconds: expected at least 0");
  CHECK_THROWS_WITH(cheapest(good, {.overlap = 1.5}), "overlap: expected 0 to 1, got 1.5");
  CHECK_THROWS_WITH(cheapest(good, {.seconds_per_byte = infinite}),
                    "seconds per byte: expected a finite number of at least 0, got inf");
  CHECK_THROWS_WITH(cheapest(good, {}, {0}), "simple has options of 1 vertices, expected 2");
  CHECK_THROWS_WITH(seconds_of(good, {0, 3}),
                    "the selection: vertex 1 has no option 3: expected 0 to 2");
  CHECK_THROWS_WITH(bytes_of(good, {-1, 0}),
                    "the selection: vertex 0 has no option -1: expected 0 to 1");
}
