// find_plan: the plan that makes a step fastest on a cluster, by a model of it.
#pragma once

#include <lamina/network/memory.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/plan/step_model.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

struct PlannerOptions {
  std::string searcher = "exact";  ///< see make_searcher()
  SearchOptions search = {};
  int most_splits = 40;  ///< of a layer: see StepModel::add_splits
  /// Vertices above which those that repeat take the same split.
  int tied_above = 200;
  /// Whether it may take a sharded optimizer, recomputation and micro-batches where nothing fits
  /// into memory otherwise.
  bool buys = true;
};

/// A plan, and what it is predicted to take.
struct PredictedPlan {
  std::string name = {};  ///< "auto", or that of a built-in plan
  std::vector<Split> splits = {};
  PredictedStep step = {};
  Memory memory = {};  ///< of the rank that it takes the most of: see predict_memory()
  bool fits = true;    ///< into the memory of the devices
};

struct FoundPlan {
  struct Data {
    PredictedPlan plan = {};
    std::vector<std::string> bought = {};
  };

  PredictedPlan best = {};  ///< "auto"; where a built-in plan is as good, its splits
  /// How it is placed: batch, micro-batches, recomputation, sharded optimizer. Splits are the best
  /// plan's.
  PlaceOptions placing = {};
  std::vector<std::string> bought = {};    ///< what was taken so that it fits, in words
  std::vector<PredictedPlan> others = {};  ///< built-in plans that are possible, placed likewise
  /// `data` with purchases of its own, those that it needs to fit: what is fair to compare with.
  /// None where it is impossible, or fits with none of them.
  std::optional<Data> data = {};
  Found found = {};                       ///< by the searcher
  std::shared_ptr<StepModel> model = {};  ///< has the splits that were tried
  Selection selection = {};               ///< of the best, in the model
};

/// Searches the plan of a network that is placed as `options` say (communicator, splits and back
/// end do not count) on the first `ranks` devices of a cluster, for the shortest step that fits
/// into the memory of the devices. `times` says how long kernels take; FormulaTimes if it is null.
/// Needs no device and no ranks; the same on every rank that asks.
///
/// Never predicted slower than any built-in plan that fits, nor than `data` with purchases of its
/// own. Where nothing fits, it buys memory: of a sharded optimizer, recomputation of all layers
/// without weights, and micro-batches, the combination with the shortest step among those with the
/// fewest micro-batches. Throws Error where no plan fits at all, which says by how much and what
/// would help; where no plan is legal; and where the cluster is impossible.
FoundPlan find_plan(const Network& network, const PlaceOptions& options, const UpdateRule& rule,
                    const Cluster& cluster, int ranks, const PlannerOptions& planner = {},
                    std::shared_ptr<const LayerTimes> times = {});

/// What was predicted of a step, as a plan keeps it.
PlanPrediction plan_prediction(const StepModel& model, const PredictedStep& step);
/// The same as a plan that one can write, edit and read again, with what was predicted.
Plan plan_of(const FoundPlan& found, std::string model);

}  // namespace lamina
