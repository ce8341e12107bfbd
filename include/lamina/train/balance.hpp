// Balance: how many workers each rank runs, so that unlike ranks are equally busy.
#pragma once

#include <lamina/cost/split.hpp>

#include <span>
#include <string>
#include <vector>

namespace lamina {

/// Workers for each rank, one at least, by speeds (workers per second, above 0): each goes to the
/// rank that would have done with it first, so that no other way has all done earlier. Throws Error
/// for fewer workers than ranks.
Shares apportion(int workers, std::span<const double> speeds);

/// Seconds that the slowest rank takes for its workers, over the mean of all.
double imbalance(const Shares& workers, std::span<const double> seconds);

/// Looks on while ranks train, and says when other shares are due. Ranks that are told the same
/// numbers come to the same result.
class Balance {
 public:
  /// Forgets what it has seen: to be called when shares have changed. Ranks that have changed are
  /// looked at by a new one.
  void restart() { steps_.clear(), asked_.clear(); }
  /// Seconds that a worker took on each rank in a step.
  void add(std::vector<double> seconds) { steps_.push_back(std::move(seconds)); }
  /// Of each rank, the median over the steps that were added last.
  std::vector<double> seconds() const;
  /// After every window of steps: the shares that would be at least 5 % faster, if the window
  /// before had said so, too; else none. A window is six steps; twice as many after each change, at
  /// most 96, and half as many after each that shows no gain: so shares do not follow for ever what
  /// comes and goes.
  Shares due(const Shares& now);

 private:
  static constexpr std::size_t least = 6, most = 96;
  std::size_t window_ = least;
  std::vector<std::vector<double>> steps_;
  Shares asked_;  // what the window before would have
};

}  // namespace lamina
