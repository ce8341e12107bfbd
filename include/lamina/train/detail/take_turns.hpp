// Plans that are timed in turns.
#pragma once

#include <lamina/base/median.hpp>
#include <lamina/train/choose_plan.hpp>

#include <algorithm>
#include <limits>
#include <vector>

namespace lamina::detail::timed_plans {

/// Calls run(plan), which adds to its seconds, in rounds. On slow links a plan may take many times
/// as long as the best one, and all others together: it is not waited for again.
template <class Run>
void take_turns(std::vector<TimedPlan>& plans, int rounds, Run&& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    for (TimedPlan& plan : plans)
      if (plan.seconds.empty() || std::ranges::min(plan.seconds) <= 2 * best) run(plan);
    for (TimedPlan& plan : plans)
      plan.median = median(plan.seconds), best = std::min(best, plan.median);
  }
}

}  // namespace lamina::detail::timed_plans
