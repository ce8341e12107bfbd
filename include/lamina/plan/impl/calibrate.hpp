// How layers are measured where they are placed, and which plans that is done for.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/median.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/detail/gradients.hpp>
#include <lamina/plan/detail/possible_plans.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/profile/detail/made_up.hpp>
#include <lamina/profile/profiler.hpp>
#include <lamina/profile/usage.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace lamina {

namespace detail::calibrate {

inline constexpr std::array passes = {Pass::forward, Pass::input_grad, Pass::weight_grad};
inline constexpr double LayerSeconds::*members[] = {
    &LayerSeconds::forward, &LayerSeconds::input_grad, &LayerSeconds::weight_grad};
/// Seconds of these passes.
using PassSeconds = std::array<double, passes.size()>;

/// As layers are measured.
inline PlaceOptions placing(const PlaceOptions& options, const std::vector<Split>& splits,
                            const Communicator& ranks) {
  PlaceOptions plain = options;
  plain.ranks = ranks, plain.splits = splits;
  plain.recompute.clear(), plain.frozen.clear(), plain.parameters_of = nullptr;
  plain.micro_batches = 1, plain.shard_optimizer = plain.fuse = false;
  return plain;
}

/// Of each vertex; the input has none.
inline std::vector<LocalLayer> local_layers(const Network& network, const PlaceOptions& options,
                                            const std::vector<Split>& splits) {
  std::vector<LocalLayer> all(1);
  const auto& graph = network.graph();
  check(splits.size() == graph.size(), "expected a split for each of ", graph.size(),
        " vertices, got ", splits.size());
  for (std::size_t v = 1; v < graph.size(); ++v)
    all.push_back(local_layer(*graph[v].layer, network.input_shapes(graph[v], options.batch),
                              splits[v], options.dtype));
  return all;
}

/// How many of them are not known, in all passes that run.
inline int unknown(const MeasuredTimes& times, const std::vector<LocalLayer>& layers,
                   const std::vector<bool>& wants_dx) {
  std::set<std::string> all;
  for (std::size_t v = 1; v < layers.size(); ++v) {
    const MeasuredTimes::Entry* known = times.find(layers[v]);
    if (!known || (wants_dx[v] && known->seconds.input_grad < 0)) all.insert(layers[v].text());
  }
  return int(all.size());
}

/// Steps that were recorded, and how much of each of them a rank was denied its processor, at most.
struct Recorded {
  std::optional<Profiler> profiler{std::in_place, 4096, 16};
  std::vector<double> denied = {};

  /// The middle of a cell's seconds, in those steps of which ranks were denied the least.
  double seconds(const Profiler::Cell& cell) const {
    std::vector<std::size_t> order(denied.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return denied[i]; });
    const auto calm =
        std::size_t(std::ranges::count_if(denied, [](double part) { return part < disturbing; }));
    order.resize(std::max(calm, std::min(fewest, order.size())));
    std::vector<double> all;
    for (const std::size_t i : order) all.push_back(i < cell.steps.size() ? cell.steps[i] : 0);
    return median(all);
  }
  void forget() { profiler.emplace(4096, 16), denied.clear(); }
  bool calm() const {
    return std::size_t(std::ranges::count_if(
               denied, [](double part) { return part < disturbing; })) >= fewest;
  }

  std::size_t fewest = 3;  // steps
  static constexpr std::size_t most = 16;
  static constexpr double disturbing = 0.1;
};

/// Runs steps without communication, on all ranks at once, until there are enough.
inline void record_steps(PlacedNetwork& placed, const Communicator& ranks, Recorded& recorded) {
  constexpr double enough = 0.5, patience = 4, lengthy = 1;  // seconds
  Stream stream;
  stream.silence(true);
  stream.record_to(&*recorded.profiler);
  const Tensor targets = fill_made_up(placed);
  Context context{.stream = stream, .targets = targets};
  double spent = 0;
  const auto step = [&] {
    ranks.barrier();  // all are at work while one is
    const double denied = usage().denied;
    recorded.profiler->begin_step();
    placed.forward(context), placed.backward(context), stream.wait();
    recorded.profiler->end_step();
    ++context.step;
    const double took = recorded.profiler->seconds().back();
    recorded.denied.push_back(
        ranks.all_reduce_value((usage().denied - denied) / took, ReduceOp::max));
    spent += ranks.all_reduce_value(took, ReduceOp::max);
  };
  step();
  if (spent > lengthy)  // so are its kernels, and first touch does not show
    recorded.fewest = 1;
  else
    recorded.forget(), spent = 0;
  while (recorded.denied.size() < recorded.fewest ||
         (recorded.denied.size() < Recorded::most && spent < (recorded.calm() ? enough : patience)))
    step();
}

/// Those of a cell that are no sum of gradients, which depends on who reads y, not on the layer.
inline double seconds_of_layer(const Recorded& recorded, const Profiler::Cell& cell, Pass pass) {
  const double all = recorded.seconds(cell);
  if (pass != Pass::input_grad) return all;
  double kernels = 0, sums = 0;
  for (const Profiler::KernelSum& k : cell.kernels) {
    if (k.lane != Lane::compute) continue;
    kernels += k.seconds;
    if (std::string_view(k.what) == "sum") sums += k.seconds;
  }
  return kernels > 0 ? all * (1 - sums / kernels) : all;
}

/// Seconds of each vertex and pass on this rank, without sums of gradients.
inline std::vector<PassSeconds> seconds_of_steps(PlacedNetwork& placed, const Communicator& ranks) {
  Recorded recorded;
  record_steps(placed, ranks, recorded);
  std::vector<PassSeconds> all(placed.network().graph().size(), PassSeconds{});
  const auto& steps = placed.steps();
  for (std::size_t s = 1; s < steps.size(); ++s)
    for (std::size_t p = 0; p < passes.size(); ++p)
      if (steps[s].kind != Step::Kind::reshard)
        all[std::size_t(steps[s].vertex)][p] +=
            seconds_of_layer(recorded, recorded.profiler->cell(int(s), passes[p]), passes[p]);
  return all;
}

/// Measures plans, while there is time.
class Plans {
 public:
  Plans(Calibration& to, const Network& network, const PlaceOptions& options,
        const UpdateRule& rule, const World& world, double seconds)
      : to_(to), network_(network), options_(options), rule_(rule), world_(world) {
    end_ = now() + seconds;
  }

  /// Whether all of its layers are known by now.
  bool measure(const std::vector<Split>& splits) {
    const auto layers = local_layers(network_, options_, splits);
    if (unknown(*to_.times, layers,
                gradients_of(network_, options_.batch, options_.dtype.compute).of_inputs) == 0)
      return true;
    // All ranks must go the same way: that of the first.
    const bool may = world_.rank() == 0 && now() < end_ && fits(splits);
    if (!world_.comm().all_gather_value(int(may))[0]) return false;
    to_.measured += measure_layers(*to_.times, network_, options_, splits, world_);
    return true;
  }

 private:
  bool fits(const std::vector<Split>& splits) const {
    const int ranks = world_.size();
    const PlaceOptions plain = placing(options_, splits, {});
    return double(most_memory(network_, plain, splits, ranks, rule_).total()) <=
           to_.cluster.least_memory(ranks);
  }

  Calibration& to_;
  const Network& network_;
  const PlaceOptions& options_;
  const UpdateRule& rule_;
  const World& world_;
  double end_ = 0;
};

}  // namespace detail::calibrate

LAMINA_INLINE int measure_layers(MeasuredTimes& times, const Network& network,
                                 const PlaceOptions& options, const std::vector<Split>& splits,
                                 const World& world) {
  namespace d = detail::calibrate;
  const Communicator& ranks = world.comm();
  const auto layers = d::local_layers(network, options, splits);
  const std::vector<bool> wants_dx =
      detail::gradients_of(network, options.batch, options.dtype.compute).of_inputs;
  const int found = d::unknown(times, layers, wants_dx);
  if (found == 0) return 0;
  PlacedNetwork placed = network.place(d::placing(options, splits, ranks));
  placed.initialize(0);
  const auto mine = d::seconds_of_steps(placed, ranks);
  struct Sum {
    MeasuredTimes::Entry entry = {};
    std::array<int, d::passes.size()> counts = {};
  };
  std::vector<Sum> sums;
  for (std::size_t v = 1; v < layers.size(); ++v) {
    d::PassSeconds slowest = {};
    const auto all = ranks.all_gather_value(mine[v]);
    for (const auto& one : all)
      for (std::size_t p = 0; p < slowest.size(); ++p) slowest[p] = std::max(slowest[p], one[p]);
    auto at = std::ranges::find(sums, layers[v], [](const Sum& s) { return s.entry.layer; });
    if (at == sums.end()) {
      const auto& vertex = network.graph()[v];
      sums.push_back({{.layer = layers[v]}});
      at = sums.end() - 1;
      at->entry.formula = times.formulas().of(
          *vertex.layer, network.input_shapes(vertex, options.batch), splits[v], options.dtype, {});
    }
    for (std::size_t p = 0; p < d::passes.size(); ++p) {
      if (d::passes[p] == Pass::input_grad && !wants_dx[v]) continue;
      at->entry.seconds.*d::members[p] += slowest[p], ++at->counts[p];
    }
  }
  for (Sum& s : sums) {
    for (std::size_t p = 0; p < d::passes.size(); ++p) {
      double& seconds = s.entry.seconds.*d::members[p];
      seconds = s.counts[p] > 0 ? seconds / s.counts[p] : -1;
    }
    times.add(std::move(s.entry));
  }
  return found;
}

LAMINA_INLINE void measure_update(MeasuredTimes& times, const UpdateRule& rule,
                                  std::int64_t parameters, const PlaceOptions& options,
                                  const World& world) {
  times.updates_are_of(parameters);
  parameters = std::min(parameters, most_updated);
  const std::string name = update_name(rule, options.dtype, parameters);
  if (parameters < 1 || rule.kind == UpdateRule::Kind::custom || times.updates().contains(name))
    return;
  const Precision& p = options.dtype;
  const Backend& backend = *options.backend;
  MemorySpace& memory = backend.memory();
  const bool master = keeps_master(p.weights, p.states);
  const auto form = [&](DType t) { return Form{{1, parameters, 1, 1}, t, {}}; };
  const Tensor w(form(master ? p.states : p.weights), memory), dw(form(p.gradients), memory);
  const Tensor rounded = master ? Tensor(form(p.weights), memory) : Tensor();
  std::vector<Tensor> states;
  std::vector<View> views;
  for (int i = 0; i < rule.states(); ++i) states.emplace_back(form(p.states), memory);
  for (const Tensor& s : states) views.push_back(s);
  Passed<UpdateValues> values(memory);
  Stream stream;
  values.put(stream, {1e-3, 1, 1});
  const UpdateStep step{.rate = 1, .values = values.view()};
  const auto kernel =
      backend.update(rule, {{.w = w, .dw = dw, .states = views, .rounded = rounded}});
  std::vector<double> seconds;
  for (int i = 0; i < 6; ++i) {
    world.comm().barrier();
    const double begin = now();
    kernel->run(stream, step), stream.wait();
    if (i > 0) seconds.push_back(now() - begin);
  }
  const double slowest = world.comm().all_reduce_value(median(seconds), ReduceOp::max);
  times.add_update(name, update_work(rule, double(parameters), p).bytes / std::max(slowest, 1e-9));
}

LAMINA_INLINE Calibration calibrate(const Network& network, const PlaceOptions& options,
                                    const UpdateRule& rule, const World& world, Cluster cluster,
                                    const CalibrateOptions& how) {
  namespace d = detail::calibrate;
  check(options.backend != nullptr, "calibrate: the options name no back end");
  check_cluster(cluster);
  const int ranks = world.size();
  Calibration c{.times = std::make_shared<MeasuredTimes>(cluster)};
  c.cluster = std::move(cluster);
  load_measured(*c.times, world, *options.backend);
  double parameters = 0;
  for (const auto& v : network.graph())
    if (v.layer)
      parameters += v.layer->cost(network.input_shapes(v, options.batch), {}, options.dtype.compute)
                        .parameters;
  measure_update(*c.times, rule, std::int64_t(parameters), options, world);
  d::Plans plans(c, network, options, rule, world, how.seconds);
  for (const auto& [name, splits] : detail::possible_plans(network, options.batch, ranks))
    plans.measure(splits);
  for (int i = 0; i < how.most_plans && !c.settled; ++i) {
    const FoundPlan found =
        find_plan(network, options, rule, c.cluster, ranks, how.planner, c.times);
    const int before = c.measured;
    if (!plans.measure(found.best.splits)) break;
    c.settled = c.measured == before;
  }
  keep_measured(*c.times, world, *options.backend);
  return c;
}

LAMINA_INLINE Calibration calibrate(const Network& network, const PlaceOptions& options,
                                    const UpdateRule& rule, const World& world,
                                    const CalibrateOptions& how) {
  check(options.backend != nullptr, "calibrate: the options name no back end");
  return calibrate(network, options, rule, world, measure_cluster(world, *options.backend), how);
}

}  // namespace lamina
