// Prediction: what there is to say about a plan that was found, as data, tables, JSON and drawings.
#pragma once

#include <lamina/plan/find_plan.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lamina {

/// The split of a layer that makes the shortest step beside the one that it has, if all other
/// layers keep theirs.
struct RunnerUp {
  Split split = {};
  /// By how much the step takes longer; below 0 where it is shorter. Infinite: there is no other.
  double seconds = std::numeric_limits<double>::infinity();
};

/// Steps on a number of devices. Seconds are infinite where no such plan fits.
struct ScalingPoint {
  int devices = 1;
  std::int64_t batch = 1;                                 ///< samples of a step
  double data = std::numeric_limits<double>::infinity();  ///< seconds under the plan `data`
  double best = std::numeric_limits<double>::infinity();  ///< under the plan that was found
  std::vector<std::string> bought = {};                   ///< see FoundPlan
  std::vector<std::string> data_bought = {};              ///< by `data` on its own
  std::string reason = {};                                ///< why there is no plan at all

  /// Of steps that take so long; 0 where they are infinite.
  double images_per_second(double seconds) const { return double(batch) / seconds; }
};

/// Where data-parallel stops paying; 0: it does not, as far as points go.
struct TurningPoints {
  int fastest = 0;    ///< more devices than these train no more images/s
  int overtaken = 0;  ///< the plan that was found is more than 5 % faster on all from so many on,
                      ///< or the only one that fits
};

struct Prediction {
  std::string model = {}, cluster = {}, device = {}, dtype = {}, searcher = {};
  int devices = 1, micro_batches = 1;
  std::int64_t batch = 1;    ///< samples of a step
  double device_memory = 0;  ///< bytes, of the device that has the least
  bool shard_optimizer = false;
  std::vector<bool> recompute = {};           ///< see PlaceOptions
  std::vector<std::string> bought = {};       ///< see FoundPlan
  std::vector<std::string> data_bought = {};  ///< by `data` on its own
  std::vector<PredictedPlan> plans = {};      ///< "auto", then the built-in ones that are possible
  std::vector<RunnerUp> runners_up = {};      ///< of each vertex, under "auto"
  std::int64_t steps_tried = 0;
  std::vector<double> convergence = {};              ///< see Found
  std::vector<ScalingPoint> strong = {}, weak = {};  ///< by number of devices
  std::vector<ScalingPoint> sweep = {};              ///< for each number of devices all batches

  const PredictedPlan& best() const { return plans.front(); }
  /// Null where that is impossible.
  const PredictedPlan* plan(std::string_view name) const;
};

/// All but scaling and sweep.
Prediction prediction_of(const FoundPlan& found, std::string model, std::string searcher);

/// find_plan on the first so many devices of a cluster, or on more of the same kind (Cluster::of),
/// with `batch` samples a step. Where it throws, the point has the reason.
ScalingPoint predict_point(const Network& network, PlaceOptions options, const UpdateRule& rule,
                           const Cluster& cluster, int devices, std::int64_t batch,
                           const PlannerOptions& planner = {});
/// 1, 2, 4 ... devices of a node, then 1, 2, 4 ... nodes; at most `most` devices.
std::vector<int> scaling_devices(const Cluster& cluster, int most);
TurningPoints turning_points(const std::vector<ScalingPoint>& points);

/// What was predicted, for which machine, what was bought: lines without an end.
std::vector<std::string> prediction_remarks(const Prediction& prediction);
/// Of each layer, split and milliseconds by component, those under `data`, and the runner-up.
/// Neighbours with the same split share a row, and the runner-up is that of the layer whose step
/// would be shortest. Where the width does not hold all components, what is not kernels is summed
/// up as waiting.
std::string layer_table(const Prediction& prediction, const PlanTableOptions& options = {});
/// A row for each plan, and which of them is the answer.
std::string plans_table(const Prediction& prediction, const PlanTableOptions& options = {});
/// A row for each number of devices, and where data-parallel stops paying. Efficiency is images/s
/// per device, as part of those on the fewest devices on which a plan fits.
std::string scaling_table(const std::vector<ScalingPoint>& points,
                          const PlanTableOptions& options = {});
/// Rows of devices, columns of batches: images/s, and how many times data-parallel's.
std::string sweep_table(const std::vector<ScalingPoint>& points);

inline constexpr const char* prediction_schema = "lamina-prediction";
inline constexpr int prediction_schema_version = 1;

/// All of it, in seconds and bytes; docs/planning.md describes it. Throws Error naming `path`.
void write_prediction_json(const std::string& path, const Prediction& prediction);
/// Images/s over devices, of data-parallel and of the plans that were found. Throws Error without
/// points of scaling.
std::string scaling_svg(const Prediction& prediction);
/// Seconds of the best so far over the search's iterations. Throws Error where there were none.
std::string convergence_svg(const Prediction& prediction);

}  // namespace lamina
