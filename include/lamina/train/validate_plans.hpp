// validate_plans: whether plans take as long as they are predicted to.
#pragma once

#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/validation.hpp>
#include <lamina/train/trainer.hpp>

namespace lamina {

struct ValidateOptions {
  int plans = 24;          ///< that run: built-in ones, the best one found, and mixed ones
  int rounds = 3;          ///< in each, every plan is placed and timed, in turns
  double seconds = 1;      ///< of steps, for each plan and round; at least one step, at most 20
  double longest = 10;     ///< seconds of a step: plans but `data` that take longer do not run
  std::uint64_t seed = 1;  ///< of what is mixed
  PlannerOptions planner = {};  ///< of the plan that is found
};

/// Runs plans on these ranks, and predicts each of them by formulas and by what `calibration` has;
/// layers of theirs that were not measured yet are measured first. A mixed plan is one of the
/// others with a part of its layers split by chance. Splits, recomputation, micro-batches and
/// sharding of the options do not count. The steps of the last round are recorded, layer by layer.
/// Collective; throws Error, on all ranks, as find_plan() and Trainer do.
Validation validate_plans(const Network& network, const Dataset& data, const World& world,
                          const Optimizer& optimizer, TrainerOptions options,
                          const Calibration& calibration, const ValidateOptions& how = {});

}  // namespace lamina
