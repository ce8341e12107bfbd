// What the tests of searches share: graphs of random costs, and the best selection of small ones by
// trying all.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/plan/search.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace lamina::test {

/// Random numbers one after the other.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, key_of("plan_search")) {}
  double uniform() { return random_.uniform(2 * next_++); }
  int below(int n) { return int(random_.below(std::uint64_t(n), next_++)); }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

/// The ends of the edges of a graph.
struct Ends {
  int vertices = 0;
  std::vector<std::pair<int, int>> edges = {};

  int add(int from) {
    edges.push_back({from, vertices});
    return vertices++;
  }
};

inline Ends chain(int n) {
  Ends to{1};
  while (to.vertices < n) to.add(to.vertices - 1);
  return to;
}

inline Ends tree(int n, Draw& draw) {
  Ends to{1};
  while (to.vertices < n) to.add(draw.below(to.vertices));
  return to;
}

/// Branches with so many vertices each, from the last vertex to a new one; with none it is an edge
/// past all others.
inline void join(Ends& to, const std::vector<int>& lengths) {
  const int from = to.vertices - 1;
  std::vector<int> ends;
  for (const int length : lengths) {
    int end = from;
    for (int i = 0; i < length; ++i) end = to.add(end);
    ends.push_back(end);
  }
  const int last = to.vertices++;
  for (const int end : ends) to.edges.push_back({end, last});
}

/// Residual blocks in a row; `nested` puts an edge past each two of them as well.
inline Ends residual(int blocks, int depth, bool nested = false) {
  Ends to{1};
  for (int b = 0, past = 0; b < blocks; ++b) {
    join(to, {depth, 0});
    if (nested && b % 2 == 1)
      to.edges.push_back({std::exchange(past, to.vertices - 1), to.vertices - 1});
  }
  return to;
}

inline Ends inception(int blocks, const std::vector<int>& lengths) {
  Ends to{1};
  for (int b = 0; b < blocks; ++b) join(to, lengths);
  return to;
}

/// Any two vertices are joined by this chance, in either direction.
inline Ends dense(int n, double chance, Draw& draw) {
  Ends to{n};
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      if (draw.uniform() < chance)
        to.edges.push_back(draw.below(2) ? std::pair(a, b) : std::pair(b, a));
  return to;
}

struct Costs {
  int options = 3;  ///< at most, of a vertex; with `alike` so many of each
  bool alike = false;
  int whole = 0;  ///< costs are whole numbers below this, so that many selections cost the same
  double impossible = 0;  ///< chance that an edge's options do not go together
};

inline CostGraph made(const Ends& ends, const Costs& costs, Draw& draw) {
  CostGraph to;
  const auto cost = [&] { return costs.whole > 0 ? draw.below(costs.whole) : draw.uniform(); };
  const auto fill = [&](std::size_t n) {
    std::vector<double> values(n);
    for (double& x : values) x = cost();
    return values;
  };
  for (int v = 0; v < ends.vertices; ++v) {
    const auto n = std::size_t(costs.alike ? costs.options : 1 + draw.below(costs.options));
    to.seconds.push_back(fill(n));
    to.hidden.push_back(fill(n));
    to.bytes.push_back(fill(n));
  }
  for (const auto& [a, b] : ends.edges) {
    to.edges.push_back({a, b, fill(std::size_t(to.options(a) * to.options(b)))});
    for (double& x : to.edges.back().seconds)
      if (costs.impossible > 0 && draw.uniform() < costs.impossible)
        x = std::numeric_limits<double>::infinity();
  }
  return to;
}

/// Calls `use` with each selection that there is.
template <class Use>
void for_each_selection(const CostGraph& graph, Use&& use) {
  Selection selection(graph.size());
  const std::function<void(std::size_t)> from = [&](std::size_t v) {
    if (v == graph.size()) return use(std::as_const(selection));
    for (selection[v] = 0; selection[v] < graph.options(int(v)); ++selection[v]) from(v + 1);
  };
  from(0);
}

/// What the formula of CostGraph says, term by term.
inline double by_formula(const CostGraph& graph, const Selection& c, double rho, double lambda) {
  double sum = 0;
  const auto of = [&](int v) { return std::size_t(c[std::size_t(v)]); };
  for (int v = 0; v < int(graph.size()); ++v) {
    const auto i = std::size_t(v);
    sum += graph.seconds[i][of(v)];
    if (!graph.hidden.empty()) sum += (1 - rho) * graph.hidden[i][of(v)];
    if (!graph.bytes.empty()) sum += lambda * graph.bytes[i][of(v)];
  }
  for (const auto& e : graph.edges)
    sum += e.seconds[of(e.from) * std::size_t(graph.options(e.to)) + of(e.to)];
  return sum;
}

/// The least of `value` over all selections.
template <class Value>
double least(const CostGraph& graph, Value&& value) {
  double best = std::numeric_limits<double>::infinity();
  for_each_selection(graph, [&](const Selection& c) { best = std::min(best, double(value(c))); });
  return best;
}

/// A step that is no sum: what is hidden costs nothing up to a limit, and all beyond it.
inline std::function<double(const Selection&)> overlapping(const CostGraph& graph, double limit) {
  return [&graph, limit](const Selection& c) {
    double hidden = 0;
    for (std::size_t v = 0; v < graph.size(); ++v) hidden += graph.hidden[v][std::size_t(c[v])];
    return by_formula(graph, c, 1, 0) + std::max(0.0, hidden - limit);
  };
}

}  // namespace lamina::test
