// choose_plan: the plan that is fastest in truth, among those that are predicted to be.
#pragma once

#include <lamina/plan/find_plan.hpp>
#include <lamina/train/trainer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina {

struct ChooseOptions {
  PlannerOptions planner = {};
  int plans = 3;   ///< that are timed, beside `data`
  int rounds = 3;  ///< in each, every plan is placed and timed, in turns
  int steps = 3;   ///< of each plan in a round, after one that does not count
  /// The part of a step by which a plan must be faster than `data` to be taken in its stead.
  double margin = 0.02;
};

/// A plan that was timed for real.
struct TimedPlan {
  std::string name = {};             ///< "auto", "data", ...
  std::vector<Split> splits = {};    ///< of each vertex
  double predicted = 0;              ///< seconds of a step
  std::vector<double> seconds = {};  ///< of each step, of the rank that took longest
  double median = 0;                 ///< of these
};

struct ChosenPlan {
  Plan plan = {};
  TrainerOptions training = {};          ///< with its splits, and with what was bought
  std::vector<std::string> bought = {};  ///< see FoundPlan
  std::vector<TimedPlan> timed = {};     ///< the chosen one first, the others by their medians
};

/// Searches plans for a training (find_plan), takes the best ones for this cluster, for one with
/// links of half the speed and for one with twice that, then the built-in ones, as long as they
/// differ and fit; trains on `data` with each of them and with `data` for some steps, and chooses
/// the fastest by the median of its steps. Splits of the options do not count, nor does their
/// back end in the search. Rank 0 plans, and all choose the same. `times` says how long kernels
/// take; FormulaTimes if it is null. Collective; throws Error, on all ranks, as find_plan() and
/// Trainer do.
ChosenPlan choose_plan(const Network& network, const Dataset& data, const Communicator& ranks,
                       const Optimizer& optimizer, TrainerOptions options, const Cluster& cluster,
                       const ChooseOptions& choose = {},
                       std::shared_ptr<const LayerTimes> times = {});

}  // namespace lamina
