// brute and fixed: all selections there are, and a single one.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/search.hpp>

namespace lamina::detail::search {

LAMINA_INLINE void brute(Trials& trials, const SearchOptions& options) {
  const CostGraph& graph = trials.graph();
  double count = 1;
  for (const auto& seconds : graph.seconds) count *= double(seconds.size());
  check(count <= double(options.most_selections), "brute: there are ",
        count < 1e15 ? text(std::int64_t(count)) : text(count), " selections: expected at most ",
        options.most_selections);
  Selection selection(graph.size());
  for (;;) {
    trials.score(selection);
    std::size_t v = selection.size();
    while (v > 0 && ++selection[v - 1] == graph.options(int(v - 1))) selection[--v] = 0;
    if (v == 0) break;
  }
  trials.record();
}

/// Evaluates a selection, and tries no other.
LAMINA_INLINE void fixed(Trials& trials, const SearchOptions&) {
  trials.score(trials.problem().simple);
  trials.record();
}

}  // namespace lamina::detail::search
