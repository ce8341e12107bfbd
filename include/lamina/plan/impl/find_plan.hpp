// The search for the best plan, within memory.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/possible_plans.hpp>
#include <lamina/plan/find_plan.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace lamina {

namespace detail::planner {

inline constexpr int attempts = 4;  // at a plan that fits, until a built-in one has to do
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// What one can buy memory with.
struct Purchase {
  bool shards = false, recomputes = false;
  int micro_batches = 1;

  std::vector<std::string> words(const PlaceOptions& before) const {
    std::vector<std::string> all;
    if (shards && !before.shard_optimizer) all.push_back("a sharded optimizer");
    if (recomputes) all.push_back("recomputation of layers without weights");
    if (micro_batches > std::max(1, before.micro_batches))
      all.push_back(text(micro_batches, " micro-batches"));
    return all;
  }
};

/// Goes through one way of placing a network.
class Search {
 public:
  /// Of built-in plans, all, or the first one alone, and then nothing can be searched.
  Search(const Network& network, PlaceOptions placing, const UpdateRule& rule,
         const Cluster& cluster, int ranks, const PlannerOptions& planner,
         std::shared_ptr<const LayerTimes> times, bool first_alone = false)
      : network_(network),
        rule_(rule),
        ranks_(ranks),
        planner_(planner),
        model_(std::make_shared<StepModel>(network, placing, rule, cluster, ranks, times)) {
    placing_ = std::move(placing);
    limit_ = cluster.least_memory(ranks);
    add_built_in(first_alone);
    if (!first_alone) model_->add_splits(planner.most_splits);
  }

  /// The best that fits; nothing where none does.
  std::optional<FoundPlan> run() {
    SearchProblem problem;
    problem.step = [this](const Selection& s) { return model_->seconds(s); };
    problem.simple = model_->select(built_in_.front().splits);
    for (const PredictedPlan& plan : built_in_)
      if (plan.fits) problem.seeds.push_back(model_->select(plan.splits));
    problem.graph = model_->graph();  // all splits are there now
    if (int(network_.graph().size()) > planner_.tied_above) problem.tied = model_->repeated();
    drop_untied(problem);
    // The graph's bytes are not a rank's: where the best takes too much, it must take so much less.
    const auto searcher = make_searcher(planner_.searcher, planner_.search);
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const Found found = searcher->search(problem);
      if (found.seconds == infinity) break;
      FoundPlan result = result_of(found);
      least_ = std::min(least_, double(result.best.memory.total()));
      if (result.best.fits) return better(std::move(result));
      problem.memory = 0.98 * bytes_of(problem.graph, found.selection) * limit_ /
                       double(result.best.memory.total());
    }
    return built_in_only();
  }

  /// The best built-in plan that fits; nothing where none does.
  std::optional<FoundPlan> built_in_only() const {
    std::optional<FoundPlan> result;
    for (const PredictedPlan& plan : built_in_) {
      if (!plan.fits || (result && result->best.step.seconds <= plan.step.seconds)) continue;
      if (!result) result = FoundPlan{.placing = placing_, .others = built_in_, .model = model_};
      take(*result, plan);
    }
    return result;
  }

  /// Bytes of the plan that took the least.
  double least() const { return least_; }
  double limit() const { return limit_; }

 private:
  PredictedPlan predicted(std::string name, std::vector<Split> splits) const {
    PredictedPlan plan{.name = std::move(name), .splits = std::move(splits)};
    plan.step = model_->predict(model_->select(plan.splits));
    plan.memory = most_memory(network_, placing_, plan.splits, ranks_, rule_);
    plan.fits = double(plan.memory.total()) <= limit_;
    return plan;
  }

  /// `data` first; where that is impossible, what comes next to it.
  void add_built_in(bool first_alone) {
    for (auto& [name, splits] : possible_plans(network_, placing_.batch, ranks_)) {
      if (first_alone && !built_in_.empty()) break;
      built_in_.push_back(predicted(std::string(name), std::move(splits)));
      least_ = std::min(least_, double(built_in_.back().memory.total()));
    }
    check(!built_in_.empty(), "no plan is possible on ", ranks_, " ranks with a batch of ",
          placing_.batch);
  }

  /// Seeds whose tied vertices differ are no seeds.
  static void drop_untied(SearchProblem& problem) {
    const std::vector<int>& groups = problem.tied;
    std::erase_if(problem.seeds, [&](const Selection& seed) {
      std::map<int, int> option;  // of each group
      for (std::size_t v = 0; v < groups.size(); ++v)
        if (option.try_emplace(groups[v], seed[v]).first->second != seed[v]) return true;
      return false;
    });
  }

  FoundPlan result_of(const Found& found) const {
    return {.best = predicted("auto", model_->splits_of(found.selection)),
            .placing = placing_,
            .others = built_in_,
            .found = found,
            .model = model_,
            .selection = found.selection};
  }
  /// Seeds that could not be tied may still be better.
  std::optional<FoundPlan> better(FoundPlan result) const {
    for (const PredictedPlan& plan : built_in_)
      if (plan.fits && plan.step.seconds < result.best.step.seconds) take(result, plan);
    return result;
  }
  void take(FoundPlan& result, const PredictedPlan& plan) const {
    result.best = plan, result.best.name = "auto";
    result.selection = model_->select(plan.splits);
  }

  const Network& network_;
  PlaceOptions placing_;
  const UpdateRule& rule_;
  int ranks_;
  const PlannerOptions& planner_;
  std::shared_ptr<StepModel> model_;
  double limit_ = 0, least_ = infinity;
  std::vector<PredictedPlan> built_in_;
};

/// All layers whose y others can make again quickly, beside those that are marked.
inline std::vector<bool> with_cheap_layers(const Network& network, std::vector<bool> marked) {
  marked.resize(std::max(marked.size(), network.graph().size()));
  for (std::size_t i = 0; i < network.graph().size(); ++i) {
    const Layer* const layer = network.graph()[i].layer.get();
    if (layer && !layer->multiplies() && !layer->is_loss()) marked[i] = true;
  }
  return marked;
}

/// The next number of parts, at least twice as many, into which `all` can be cut; 0: there is none.
inline int more_parts(std::int64_t all, int parts) {
  for (std::int64_t n = 2 * std::int64_t(parts); n <= all; ++n)
    if (all % n == 0) return int(n);
  return 0;
}

/// The best of what `find` finds with the fewest micro-batches, and of these with the purchases
/// that make the shortest step; nothing where it finds nothing at all.
template <class Find>
std::optional<FoundPlan> cheapest(const Network& network, const PlaceOptions& options, bool buys,
                                  Find&& find) {
  const int given = std::max(1, options.micro_batches);
  const std::int64_t all = options.batch * given;
  for (int parts = given; parts > 0; parts = more_parts(all, parts)) {
    std::optional<FoundPlan> best;
    for (Purchase bought : {Purchase{},
                            {.shards = true},
                            {.recomputes = true},
                            {.shards = true, .recomputes = true}}) {
      bought.micro_batches = parts;
      PlaceOptions placing = options;
      placing.batch = all / parts, placing.micro_batches = parts;
      placing.shard_optimizer |= bought.shards;
      if (bought.recomputes) placing.recompute = with_cheap_layers(network, options.recompute);
      std::optional<FoundPlan> found;
      try {
        found = find(placing);
      } catch (const Error&) {  // of so few samples at once: batch norm has no variance of one, say
        if (parts == given) throw;
      }
      if (found && (!best || found->best.step.seconds < best->best.step.seconds)) {
        best = std::move(found);
        best->bought = bought.words(options);
      }
      if (!buys || (best && best->bought.empty())) break;
    }
    if (best || !buys) return best;
  }
  return std::nullopt;
}

}  // namespace detail::planner

LAMINA_INLINE FoundPlan find_plan(const Network& network, const PlaceOptions& options,
                                  const UpdateRule& rule, const Cluster& cluster, int ranks,
                                  const PlannerOptions& planner,
                                  std::shared_ptr<const LayerTimes> times) {
  namespace d = detail::planner;
  check_cluster(cluster);
  check(ranks >= 1 && ranks <= cluster.devices(), "cluster ", cluster.name, " has ",
        cluster.devices(), " devices: expected from 1 to as many ranks, got ", ranks);
  if (!times) times = std::make_shared<FormulaTimes>(cluster);
  double least = d::infinity, limit = 0;
  const auto search = [&](const PlaceOptions& placing) {
    d::Search of_all(network, placing, rule, cluster, ranks, planner, times);
    std::optional<FoundPlan> found = of_all.run();
    least = std::min(least, of_all.least()), limit = of_all.limit();
    return found;
  };
  const auto data_alone = [&](const PlaceOptions& placing) {
    return d::Search(network, placing, rule, cluster, ranks, planner, times, true).built_in_only();
  };
  std::optional<FoundPlan> best = d::cheapest(network, options, planner.buys, search);
  if (!best)
    throw Error(format(
        "no plan fits into memory: the one that takes the least takes %.1f MB of a device's %.1f "
        "MB; more devices, a smaller batch%s would help",
        least / 1e6, limit / 1e6,
        planner.buys ? "" : ", a sharded optimizer, recomputation or micro-batches"));
  const PredictedPlan& data = best->others.front();
  if (data.name != "data") return *best;
  if (data.fits && best->bought.empty()) {
    best->data = {data, {}};
  } else if (const auto own = d::cheapest(network, options, planner.buys, data_alone)) {
    // The best plan fits with fewer micro-batches; all the same this one may be faster.
    if (own->best.step.seconds < best->best.step.seconds)
      best = search(own->placing), best->bought = own->bought;
    best->data = {own->best, own->bought};
    best->data->plan.name = "data";
  }
  return *best;
}

LAMINA_INLINE PlanPrediction plan_prediction(const StepModel& model, const PredictedStep& step) {
  const PlaceOptions& placing = model.options();
  PlanPrediction p{.cluster = model.cluster().name,
                   .dtype = placed_dtype(placing),
                   .batch = placing.batch * std::max(1, placing.micro_batches),
                   .seconds = step.seconds};
  for (std::size_t v = 0; v < step.layers.size(); ++v) {
    const PredictedLayer& l = step.layers[v];
    p.layers.push_back(
        {l.name, l.split, model.network().graph()[v].shape, l.kernels, l.redistribution});
    p.layers.back().passes += l.waiting;
  }
  return p;
}

LAMINA_INLINE Plan plan_of(const FoundPlan& found, std::string model) {
  Plan plan =
      plan_of(decisions_of(found.model->network(), found.best.splits, found.placing.recompute),
              std::move(model), found.model->ranks());
  plan.shard_optimizer = found.placing.shard_optimizer;
  plan.micro_batches = std::max(1, found.placing.micro_batches);
  plan.prediction = plan_prediction(*found.model, found.best.step);
  return plan;
}

}  // namespace lamina
