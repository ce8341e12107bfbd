// The ranks that share a collective.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/group.hpp>

#include <algorithm>
#include <set>

namespace lamina {

LAMINA_INLINE std::vector<int> group(const Split& split, const Place& place, Axis axes) {
  const Axis cut = axes & split.axes();
  std::vector<int> ranks(std::size_t(split.ways(cut)));
  for (int i = 0; i < int(ranks.size()); ++i) {
    Place at = place;
    int number = i;  // as Split::number has it, the last axis first
    const auto take = [&](Axis axis, int& along, int ways) {
      if (contains(cut, axis)) along = number % ways, number /= ways;
    };
    take(Axis::input, at.input, split.input), take(Axis::channel, at.channel, split.channel);
    take(Axis::width, at.width, split.width), take(Axis::height, at.height, split.height);
    take(Axis::batch, at.batch, split.batch);
    ranks[std::size_t(i)] = split.rank(at);
  }
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
