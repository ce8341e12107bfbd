// plan, choose_plan: the plan that is fastest in truth, among those that are predicted to be.
#pragma once

#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/find_plan.hpp>
#include <lamina/train/trainer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina {

struct ChooseOptions {
  PlannerOptions planner = {};
  /// For the first so many ranks, while the others wait; 0 = for all.
  int ranks = 0;
  int plans = 3;       ///< that are timed, beside `data`
  int rounds = 3;      ///< in each, every plan is placed and timed, in turns
  int steps = 3;       ///< of each plan in a round, after one that does not count
  double seconds = 2;  ///< after which a plan has no further step in a round
  /// The part of a step by which a plan must be faster than `data` to be taken in its stead.
  double margin = 0.02;
};

/// A plan that was timed for real.
struct TimedPlan {
  std::string name = {};  ///< "auto", "data", ...
  PlanPrediction prediction = {};
  std::vector<double> seconds = {};  ///< of each step, of the rank that took longest
  double median = 0;                 ///< of these

  std::vector<Split> splits() const;  ///< of each vertex
};

struct ChosenPlan {
  Plan plan = {};                        ///< with what was predicted, and what was timed
  TrainerOptions training = {};          ///< with its splits, and with what was bought
  std::vector<std::string> bought = {};  ///< see FoundPlan
  std::vector<TimedPlan> timed = {};     ///< the chosen one first, the others by their medians
  Calibration calibration = {};          ///< by which plan() predicted; empty from choose_plan()
};

/// Searches plans for a training (find_plan), takes the best ones for this cluster, for one with
/// links of half the speed and for one with twice that, then the built-in ones, as long as they
/// differ and fit; trains on `data` with each of them and with `data` for some steps, and chooses
/// the fastest by the median of its steps. One whose fastest step takes more than twice the best
/// one's median has no further rounds. Splits of the options do not count, nor does their
/// back end in the search. Rank 0 plans, and all choose the same. `times` says how long kernels
/// take; FormulaTimes if it is null. Collective, also where it is for some of the ranks; throws
/// Error, on all of them, as find_plan() and Trainer do.
ChosenPlan choose_plan(const Network& network, const Dataset& data, const Communicator& ranks,
                       const Optimizer& optimizer, TrainerOptions options, const Cluster& cluster,
                       const ChooseOptions& choose = {},
                       std::shared_ptr<const LayerTimes> times = {});

/// Made-up samples as the network takes them, with targets as its loss does. Throws Error where it
/// does not end in a loss.
std::unique_ptr<Dataset> made_up_samples(const Network& network, std::int64_t size);

/// The fastest plan for a training on the ranks of this job. Measures the machine and the layers
/// (calibrate), of which the cache keeps what it can, and chooses among the best plans by timing
/// them on made-up samples (choose_plan). Of the memory that is free, MicroBatchOptions().reserve
/// is left for what is not predicted. For some of the ranks, layers that are cut otherwise there
/// are predicted from those. `training` of what it returns is for a Trainer:
///
///   const auto chosen = lamina::plan(net, world, optimizer, {.batch = 256});
///   lamina::Trainer trainer(net, world, optimizer, chosen.training);
///
/// Collective, the same on all ranks. Throws Error, on all of them, as calibrate() and
/// choose_plan() do, and where the network does not end in a loss.
ChosenPlan plan(const Network& network, const World& world, const Optimizer& optimizer,
                TrainerOptions options = {}, const ChooseOptions& choose = {});
/// The same on a cluster that is known.
ChosenPlan plan(const Network& network, const World& world, const Optimizer& optimizer,
                TrainerOptions options, Cluster cluster, const ChooseOptions& choose = {});

}  // namespace lamina
