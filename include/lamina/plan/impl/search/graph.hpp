// Graphs of costs: what is wrong with one, what a selection costs, and vertices tied to groups.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace lamina {

namespace detail::search {

/// Of `what` ("hidden"): as many numbers as there are options, each at least 0, and finite.
inline void validate(const CostGraph& graph, const std::vector<std::vector<double>>& of,
                     const char* what) {
  if (of.empty()) return;
  check(of.size() == graph.size(), what, ": of ", of.size(), " vertices, expected ", graph.size());
  for (std::size_t v = 0; v < of.size(); ++v) {
    check(of[v].size() == graph.seconds[v].size(), "vertex ", v, ": ", what, " of ", of[v].size(),
          " options, expected ", graph.seconds[v].size());
    for (std::size_t o = 0; o < of[v].size(); ++o)
      check(is_cost(of[v][o], true), "vertex ", v, ", option ", o, ": ", what, " is ", of[v][o],
            ": expected a finite number of at least 0");
  }
}

inline void validate(const CostGraph& graph, const CostGraph::Edge& e, std::size_t number) {
  const std::string name = text("edge ", number, " from vertex ", e.from, " to vertex ", e.to);
  const int n = int(graph.size());
  check(e.from >= 0 && e.from < n && e.to >= 0 && e.to < n, name, ": there are ", n, " vertices");
  check(e.from != e.to, name, ": expected two vertices");
  const int options = graph.options(e.to);
  check(e.seconds.size() == std::size_t(graph.options(e.from)) * std::size_t(options), name, ": ",
        e.seconds.size(), " costs, expected ", graph.options(e.from), " * ", options);
  for (std::size_t i = 0; i < e.seconds.size(); ++i)
    check(is_cost(e.seconds[i], false), name, ", options ", i / std::size_t(options), " and ",
          i % std::size_t(options), ": ", e.seconds[i], " seconds: expected at least 0");
}

/// The first vertex of each group.
inline std::vector<std::size_t> first_of(const std::vector<int>& groups) {
  std::vector<std::size_t> first;
  for (std::size_t v = 0; v < groups.size(); ++v) {
    check(groups[v] >= 0 && std::size_t(groups[v]) < groups.size(), "vertex ", v,
          ": tied to group ", groups[v], ": expected groups from 0 without gaps");
    if (std::size_t(groups[v]) >= first.size())
      first.resize(std::size_t(groups[v]) + 1, groups.size());
    auto& known = first[std::size_t(groups[v])];
    known = std::min(known, v);
  }
  for (std::size_t g = 0; g < first.size(); ++g)
    check(first[g] < groups.size(), "group ", g, " of tied vertices is empty");
  return first;
}

/// The sums of `of` by group; all vertices of a group have as many options.
inline std::vector<std::vector<double>> sums_of(const std::vector<std::vector<double>>& of,
                                                const std::vector<int>& groups, std::size_t count) {
  std::vector<std::vector<double>> sums(of.empty() ? 0 : count);
  for (std::size_t v = 0; v < of.size(); ++v) {
    auto& sum = sums[std::size_t(groups[v])];
    sum.resize(of[v].size());
    for (std::size_t o = 0; o < of[v].size(); ++o) sum[o] += of[v][o];
  }
  return sums;
}

}  // namespace detail::search

LAMINA_INLINE void CostGraph::validate() const {
  for (std::size_t v = 0; v < size(); ++v) {
    check(!seconds[v].empty(), "vertex ", v, ": no options");
    for (std::size_t o = 0; o < seconds[v].size(); ++o)
      check(detail::search::is_cost(seconds[v][o], false), "vertex ", v, ", option ", o, ": ",
            seconds[v][o], " seconds: expected at least 0");
  }
  detail::search::validate(*this, hidden, "hidden");
  detail::search::validate(*this, bytes, "bytes");
  for (std::size_t e = 0; e < edges.size(); ++e) detail::search::validate(*this, edges[e], e);
}

LAMINA_INLINE void CostGraph::validate(const Selection& selection, std::string_view name) const {
  check(selection.size() == size(), name, " has options of ", selection.size(),
        " vertices, expected ", size());
  for (std::size_t v = 0; v < size(); ++v)
    check(selection[v] >= 0 && selection[v] < options(int(v)), name, ": vertex ", v,
          " has no option ", selection[v], ": expected 0 to ", options(int(v)) - 1);
}

LAMINA_INLINE double seconds_of(const CostGraph& graph, const Selection& selection,
                                const CostWeights& weights) {
  graph.validate(selection);
  double seconds = 0;
  for (std::size_t v = 0; v < graph.size(); ++v)
    seconds += graph.seconds[v][std::size_t(selection[v])] +
               (1 - weights.overlap) * detail::search::entry(graph.hidden, v, selection[v]) +
               weights.seconds_per_byte * detail::search::entry(graph.bytes, v, selection[v]);
  for (const CostGraph::Edge& e : graph.edges)
    seconds += e.seconds[std::size_t(selection[std::size_t(e.from)] * graph.options(e.to) +
                                     selection[std::size_t(e.to)])];
  return seconds;
}

LAMINA_INLINE double bytes_of(const CostGraph& graph, const Selection& selection) {
  graph.validate(selection);
  double bytes = 0;
  for (std::size_t v = 0; v < graph.size(); ++v)
    bytes += detail::search::entry(graph.bytes, v, selection[v]);
  return bytes;
}

LAMINA_INLINE CostGraph tied(const CostGraph& graph, const std::vector<int>& groups) {
  check(groups.size() == graph.size(), "ties of ", groups.size(), " vertices, expected ",
        graph.size());
  const auto first = detail::search::first_of(groups);
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const std::size_t other = first[std::size_t(groups[v])];
    check(graph.options(int(v)) == graph.options(int(other)), "vertices ", other, " and ", v,
          " are tied, but have ", graph.options(int(other)), " and ", graph.options(int(v)),
          " options");
  }
  CostGraph to;
  to.seconds = detail::search::sums_of(graph.seconds, groups, first.size());
  to.hidden = detail::search::sums_of(graph.hidden, groups, first.size());
  to.bytes = detail::search::sums_of(graph.bytes, groups, first.size());
  std::map<std::pair<int, int>, std::vector<double>> between;
  for (const CostGraph::Edge& e : graph.edges) {
    const int a = groups[std::size_t(e.from)], b = groups[std::size_t(e.to)];
    const auto m = std::size_t(to.options(a)), n = std::size_t(to.options(b));
    if (a == b) {
      for (std::size_t o = 0; o < m; ++o) to.seconds[std::size_t(a)][o] += e.seconds[o * n + o];
      continue;
    }
    auto& sum = between[std::minmax(a, b)];
    sum.resize(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j)
        sum[a < b ? i * n + j : j * m + i] += e.seconds[i * n + j];
  }
  for (auto& [ends, seconds] : between)
    to.edges.push_back({ends.first, ends.second, std::move(seconds)});
  return to;
}

LAMINA_INLINE Selection tied(const Selection& selection, const std::vector<int>& groups) {
  check(groups.size() == selection.size(), "ties of ", groups.size(), " vertices, expected ",
        selection.size());
  const auto first = detail::search::first_of(groups);
  Selection to;
  for (const std::size_t v : first) to.push_back(selection[v]);
  for (std::size_t v = 0; v < selection.size(); ++v) {
    const std::size_t other = first[std::size_t(groups[v])];
    check(selection[v] == selection[other], "vertices ", other, " and ", v, " are tied: options ",
          selection[other], " and ", selection[v], " differ");
  }
  return to;
}

LAMINA_INLINE Selection untied(const Selection& of_groups, const std::vector<int>& groups) {
  Selection to;
  for (const int g : groups) {
    check(g >= 0 && std::size_t(g) < of_groups.size(), "group ", g, " has no option: there are ",
          of_groups.size());
    to.push_back(of_groups[std::size_t(g)]);
  }
  return to;
}

}  // namespace lamina
