// The ranks that share a collective.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/group.hpp>

#include <algorithm>
#include <set>

namespace lamina {

LAMINA_INLINE std::vector<int> group(const Split& split, const Place& place, Axis axes) {
  const Axis cut = axes & split.axes(), others = Axis(int(split.axes()) & ~int(cut));
  std::vector<int> ranks(std::size_t(split.ways(cut)));
  for (int r = 0; r < split.ways(); ++r)
    if (const Place p = split.place(r); split.number(p, others) == split.number(place, others))
      ranks[std::size_t(split.number(p, cut))] = r;
  return ranks;
}

LAMINA_INLINE int stride(const std::vector<int>& ranks) {
  int most = 0;
  for (std::size_t i = 1; i < ranks.size(); ++i) most = std::max(most, ranks[i] - ranks[i - 1]);
  return most;
}

LAMINA_INLINE int nodes(const std::vector<int>& ranks, int ranks_per_node) {
  check(ranks_per_node > 0, "expected a rank or more on each node, got ", ranks_per_node);
  std::set<int> seen;
  for (const int r : ranks) seen.insert(r / ranks_per_node);
  return int(seen.size());
}

}  // namespace lamina
