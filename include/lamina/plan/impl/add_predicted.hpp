// How what was predicted of layers is divided among the rows of a profile.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/add_predicted.hpp>

#include <utility>
#include <vector>

namespace lamina {

namespace detail::predicted_rows {

inline constexpr std::pair<Pass, double LayerSeconds::*> passes[] = {
    {Pass::forward, &LayerSeconds::forward},
    {Pass::recompute, &LayerSeconds::recompute},
    {Pass::input_grad, &LayerSeconds::input_grad},
    {Pass::weight_grad, &LayerSeconds::weight_grad},
    {Pass::update, &LayerSeconds::update}};

inline bool is_of(const PlanPrediction& prediction, int ranks, const Profile& profile,
                  const PlacedNetwork& network) {
  const auto& graph = network.network().graph();
  const auto& layers = prediction.layers;  // a loss may have been added to the network since
  const PlaceOptions& placing = network.placing();
  bool same = profile.ranks == ranks && profile.batch == prediction.batch &&
              placed_dtype(placing) == prediction.dtype && !layers.empty() &&
              layers.size() <= graph.size();
  for (std::size_t v = 0; same && v < layers.size(); ++v)
    same = layers[v].name == graph[v].name && layers[v].split == placing.splits[v] &&
           layers[v].output == graph[v].shape;
  return same;
}

/// The rows of a profile by the vertex that they belong to.
class Rows {
 public:
  Rows(Profile& profile, const PlacedNetwork& network) : steps_(network.steps()) {
    for (ProfileRow& row : profile.rows)
      if (row.layer > 0 && row.fused_into.empty()) rows_.push_back(&row);
    does_.resize(network.network().graph().size());
    for (const Step& step : steps_)
      if (!step.inserted())
        does_[std::size_t(step.vertex)] =
            step.absorbed() ? steps_[std::size_t(step.absorber)].vertex : step.vertex;
  }

  void add(int vertex, Pass pass, double seconds) {
    if (pass == Pass::forward) vertex = does_[std::size_t(vertex)];
    share(vertex, seconds, [&](const ProfileRow& r) { return r.pass == pass && !moves(r); });
  }
  void add_redistribution(int vertex, double seconds) {
    share(vertex, seconds, [&](const ProfileRow& r) { return moves(r); });
  }

 private:
  const Step& step(const ProfileRow& r) const { return steps_[std::size_t(r.layer)]; }
  bool moves(const ProfileRow& r) const { return step(r).kind == Step::Kind::reshard; }

  /// Among all rows of the vertex where there are none of these.
  template <class Which>
  void share(int vertex, double seconds, const Which& which) {
    if (seconds <= 0) return;
    std::vector<ProfileRow*> own, all;
    for (ProfileRow* r : rows_)
      if (step(*r).vertex == vertex) (which(*r) ? own : all).push_back(r);
    if (own.empty()) own = std::move(all);
    double took = 0;
    for (const ProfileRow* r : own) took += r->seconds();
    for (ProfileRow* r : own)
      r->predicted += seconds * (took > 0 ? r->seconds() / took : 1 / double(own.size()));
  }

  const std::vector<Step>& steps_;
  std::vector<ProfileRow*> rows_;
  std::vector<int> does_;  // of each vertex, the one whose kernel does its forward
};

}  // namespace detail::predicted_rows

LAMINA_INLINE void add_predicted(Profile& profile, const PlacedNetwork& network, const Plan& plan) {
  namespace d = detail::predicted_rows;
  if (!plan.prediction || !d::is_of(*plan.prediction, plan.ranks, profile, network)) return;
  profile.plan = PlannedStep{plan.prediction->cluster, plan.prediction->seconds, plan.timed};
  d::Rows rows(profile, network);
  for (std::size_t v = 0; v < plan.prediction->layers.size(); ++v) {
    const PlanPrediction::Layer& layer = plan.prediction->layers[v];
    for (const auto& [pass, seconds] : d::passes) rows.add(int(v), pass, layer.passes.*seconds);
    rows.add_redistribution(int(v), layer.redistribution);
  }
}

}  // namespace lamina
