// exact: the cheapest selections of the graph for several overlaps, and of a price for memory where
// they do not fit; then the best of them, improved by what a step takes.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina::detail::search {

/// Solves the graph for weights, and keeps what comes out, each selection once.
class Sweep {
 public:
  struct Start {
    Score score;
    Selection selection;
  };

  Sweep(Trials& trials, const SearchOptions& options) : trials_(trials), options_(options) {}

  void add(const Selection& selection) { score(selection); }

  void run() {
    for (const double overlap : options_.exact.overlaps) {
      const Selection selection = solve({.overlap = overlap});
      if (!score(selection).fits()) fit(overlap, selection);
      if (trials_.graph().hidden.empty()) break;  // all overlaps are the same
    }
  }

  /// The best, best first.
  std::vector<Start> best(std::size_t count) && {
    std::ranges::stable_sort(starts_,
                             [](const Start& a, const Start& b) { return a.score < b.score; });
    if (starts_.size() > count) starts_.resize(count);
    return std::move(starts_);
  }

 private:
  static constexpr int most_solved = 16;  // per overlap, for either part of fit()

  Selection solve(const CostWeights& weights) const {
    return cheapest(trials_.graph(), weights, trials_.problem().simple, options_.most_entries);
  }

  Score score(const Selection& selection) {
    auto at = std::ranges::find(starts_, selection, &Start::selection);
    if (at == starts_.end()) {
      starts_.push_back({trials_.score(selection), selection});
      at = starts_.end() - 1;
    }
    trials_.record();
    return at->score;
  }

  /// Raises the price of a byte until the cheapest selection fits, then goes back to the lowest
  /// price for which it does (Lagrange relaxation). `free` is the cheapest one without a price.
  void fit(double overlap, const Selection& free) {
    const double bytes = bytes_of(trials_.graph(), free);
    const double seconds = seconds_of(trials_.graph(), free, {.overlap = overlap});
    if (!(bytes > 0) || !std::isfinite(seconds)) return;
    const auto fits = [&](double price) { return score(solve({overlap, price})).fits(); };
    double low = 0, high = std::max(seconds, 1e-300) / bytes / 16;
    int solved = 0;
    for (; !fits(high); low = std::exchange(high, high * 4))
      if (++solved == most_solved) return;
    for (solved = 0; solved < most_solved && high > low * 1.001; ++solved) {
      const double middle = low > 0 ? std::sqrt(low * high) : high / 4;
      (fits(middle) ? high : low) = middle;
    }
  }

  Trials& trials_;
  const SearchOptions& options_;
  std::vector<Start> starts_;
};

LAMINA_INLINE void exact(Trials& trials, const SearchOptions& options) {
  Sweep sweep(trials, options);
  sweep.add(trials.problem().simple);
  for (const Selection& seed : trials.problem().seeds) sweep.add(seed);
  sweep.run();
  const std::int64_t more = options.exact.most_steps / 5;
  const std::int64_t last = trials.steps() + options.exact.most_steps - more;
  for (auto& start : std::move(sweep).best(std::size_t(options.exact.starts)))
    improve(trials, std::move(start.selection), start.score, last - trials.steps());
  if (options.exact.starts > 0) improve_more(trials, more, options.most_entries);
  trials.least_memory();
  trials.record();
}

}  // namespace lamina::detail::search
