// Predictions: what stands beside a plan that was found.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/prediction.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace lamina {

namespace detail::prediction {

inline std::vector<RunnerUp> runners_up(const StepModel& model, const Selection& selection) {
  std::vector<RunnerUp> all(selection.size());
  const double chosen = model.seconds(selection);
  for (std::size_t v = 0; v < selection.size(); ++v) {
    const auto& splits = model.splits(int(v));
    Selection other = selection;
    for (std::size_t option = 0; option < splits.size(); ++option) {
      if (int(option) == selection[v]) continue;
      other[v] = int(option);
      const double slower = model.seconds(other) - chosen;
      if (slower < all[v].seconds) all[v] = {splits[option], slower};
    }
  }
  return all;
}

/// The names of the first so many, each once.
inline std::string devices_of(const Cluster& cluster, int ranks) {
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r)
    if (const std::string& name = cluster.device_of(r).name;
        std::ranges::find(names, name) == names.end())
      names.push_back(name);
  return lamina::in_words(names);
}

}  // namespace detail::prediction

LAMINA_INLINE const PredictedPlan* Prediction::plan(std::string_view name) const {
  const auto at = std::ranges::find(plans, name, &PredictedPlan::name);
  return at == plans.end() ? nullptr : &*at;
}

LAMINA_INLINE Prediction prediction_of(const FoundPlan& found, std::string model,
                                       std::string searcher) {
  const Cluster& cluster = found.model->cluster();
  const PlaceOptions& placing = found.placing;
  Prediction p{.model = std::move(model),
               .cluster = cluster.name,
               .device = detail::prediction::devices_of(cluster, found.model->ranks()),
               .dtype = placing.dtype.text(),
               .searcher = std::move(searcher),
               .devices = found.model->ranks(),
               .micro_batches = std::max(1, placing.micro_batches),
               .device_memory = cluster.least_memory(found.model->ranks()),
               .shard_optimizer = placing.shard_optimizer,
               .recompute = placing.recompute,
               .bought = found.bought,
               .plans = {found.best},
               .runners_up = detail::prediction::runners_up(*found.model, found.selection),
               .steps_tried = found.found.steps_tried,
               .convergence = found.found.convergence};
  p.batch = placing.batch * p.micro_batches;
  p.plans.insert(p.plans.end(), found.others.begin(), found.others.end());
  if (found.data) p.plans[1] = found.data->plan, p.data_bought = found.data->bought;
  return p;
}

LAMINA_INLINE ScalingPoint predict_point(const Network& network, PlaceOptions options,
                                         const UpdateRule& rule, const Cluster& cluster,
                                         int devices, std::int64_t batch,
                                         const PlannerOptions& planner) {
  ScalingPoint point{.devices = devices, .batch = batch};
  const int parts = std::max(1, options.micro_batches);
  try {
    check(batch % parts == 0, "a batch of ", batch, " has no ", parts, " equal micro-batches");
    options.batch = batch / parts;
    const FoundPlan found =
        find_plan(network, options, rule, cluster.of(devices), devices, planner);
    point.best = found.best.step.seconds, point.bought = found.bought;
    if (found.data)
      point.data = found.data->plan.step.seconds, point.data_bought = found.data->bought;
  } catch (const Error& e) {
    point.reason = e.what();
  }
  return point;
}

LAMINA_INLINE std::vector<int> scaling_devices(const Cluster& cluster, int most) {
  std::vector<int> all;
  for (int n = 1; n < cluster.devices_per_node && n <= most; n *= 2) all.push_back(n);
  for (std::int64_t n = cluster.devices_per_node; n <= most; n *= 2) all.push_back(int(n));
  return all;
}

LAMINA_INLINE TurningPoints turning_points(const std::vector<ScalingPoint>& points) {
  TurningPoints turns;
  double most = 0;
  int most_at = 0, last = 0;
  for (const ScalingPoint& p : points) {
    const double data = p.images_per_second(p.data), best = p.images_per_second(p.best);
    if (best > 1.05 * data)
      turns.overtaken = turns.overtaken > 0 ? turns.overtaken : p.devices;
    else if (best > 0)
      turns.overtaken = 0;
    if (data > 0) last = p.devices;
    if (data > most) most = data, most_at = p.devices;
  }
  turns.fastest = most_at == last ? 0 : most_at;
  return turns;
}

}  // namespace lamina
