// How plans are timed for real.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/train/choose_plan.hpp>
#include <lamina/train/detail/take_turns.hpp>

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>

namespace lamina {

namespace detail::timed_plans {

/// What rank 0 tells the others.
struct Candidates {
  int micro_batches = 1;
  bool shards = false;
  std::vector<bool> recompute = {};
  std::vector<std::string> bought = {};
  std::vector<TimedPlan> plans = {};  ///< `data`, or what is next to it, first

  std::string text() const;
  static Candidates of(const std::string& text);
};

inline void put(std::ostream& to, const PlanPrediction& p) {
  to << std::quoted(p.cluster) << ' ' << std::quoted(p.dtype) << ' ' << p.batch << ' '
     << exact(p.seconds) << ' ' << p.layers.size() << '\n';
  for (const PlanPrediction::Layer& layer : p.layers) {
    const LayerSeconds& s = layer.passes;
    const Shape& y = layer.output;
    to << std::quoted(layer.name) << ' ' << layer.split.text();
    for (const auto extent : {y.n, y.c, y.h, y.w}) to << ' ' << extent;
    for (const double seconds :
         {s.forward, s.input_grad, s.weight_grad, s.recompute, s.update, layer.redistribution})
      to << ' ' << exact(seconds);
    to << '\n';
  }
}

inline PlanPrediction prediction_in(std::istream& from) {
  PlanPrediction p;
  std::size_t layers = 0;
  from >> std::quoted(p.cluster) >> std::quoted(p.dtype) >> p.batch >> p.seconds >> layers;
  for (std::size_t i = 0; i < layers; ++i) {
    PlanPrediction::Layer layer;
    LayerSeconds& s = layer.passes;
    Shape& y = layer.output;
    std::string split;
    from >> std::quoted(layer.name) >> split >> y.n >> y.c >> y.h >> y.w >> s.forward >>
        s.input_grad >> s.weight_grad >> s.recompute >> s.update >> layer.redistribution;
    layer.split = parse_split(split);
    p.layers.push_back(std::move(layer));
  }
  return p;
}

inline std::string Candidates::text() const {
  std::ostringstream to;
  to << micro_batches << ' ' << shards << ' ' << recompute.size() << ' ' << bought.size() << ' '
     << plans.size() << '\n';
  for (const bool again : recompute) to << again << '\n';
  for (const std::string& words : bought) to << std::quoted(words) << '\n';
  for (const TimedPlan& plan : plans) {
    to << std::quoted(plan.name) << ' ' << exact(plan.median) << ' ' << plan.seconds.size();
    for (const double seconds : plan.seconds) to << ' ' << exact(seconds);
    to << '\n';
    put(to, plan.prediction);
  }
  return to.str();
}

inline Candidates Candidates::of(const std::string& text) {
  std::istringstream from(text);
  Candidates c;
  std::size_t recomputed = 0, bought = 0, plans = 0;
  from >> c.micro_batches >> c.shards >> recomputed >> bought >> plans;
  for (std::size_t i = 0; i < recomputed; ++i) {
    bool again = false;
    from >> again;
    c.recompute.push_back(again);
  }
  for (std::size_t i = 0; i < bought; ++i) from >> std::quoted(c.bought.emplace_back());
  for (std::size_t i = 0; i < plans; ++i) {
    TimedPlan plan;
    std::size_t steps = 0;
    from >> std::quoted(plan.name) >> plan.median >> steps;
    for (std::size_t k = 0; k < steps; ++k) from >> plan.seconds.emplace_back();
    plan.prediction = prediction_in(from);
    c.plans.push_back(std::move(plan));
  }
  return c;
}

/// With links so many times as slow.
inline Cluster slower(Cluster cluster, double factor) {
  for (Link* link : {&cluster.inside, &cluster.across})
    link->latency *= factor, link->bandwidth /= factor;
  for (CommCeiling& point : cluster.measured) point.seconds *= factor;
  return cluster;
}

/// The plans that are worth a try, `data` first.
inline Candidates candidates(const Network& network, const UpdateRule& rule,
                             const TrainerOptions& options, const Cluster& cluster, int ranks,
                             const ChooseOptions& choose,
                             const std::shared_ptr<const LayerTimes>& times) {
  const PlaceOptions placing = placing_of(options);
  const FoundPlan found = find_plan(network, placing, rule, cluster, ranks, choose.planner, times);
  Candidates c{found.placing.micro_batches,
               found.placing.shard_optimizer,
               found.placing.recompute,
               found.bought,
               {}};
  const auto add = [&](std::string name, const std::vector<Split>& splits,
                       const PredictedStep& step) {
    for (const TimedPlan& known : c.plans)
      if (known.splits() == splits) return;
    if (int(c.plans.size()) <= choose.plans)
      c.plans.push_back({std::move(name), plan_prediction(*found.model, step)});
  };
  for (const PredictedPlan& plan : found.others)
    if (plan.name == "data" && plan.fits) add(plan.name, plan.splits, plan.step);
  add("auto", found.best.splits, found.best.step);
  PlannerOptions planner = choose.planner;
  planner.buys = false;
  for (const double factor : {2.0, 0.5}) {
    try {
      const FoundPlan other =
          find_plan(network, found.placing, rule, slower(cluster, factor), ranks, planner, times);
      const PredictedStep step = found.model->predict(found.model->select(other.best.splits));
      add(factor > 1 ? "auto, slow links" : "auto, fast links", other.best.splits, step);
    } catch (const Error&) {  // its search came upon none that fits: there is the one above
    }
  }
  std::vector<const PredictedPlan*> rest;
  for (const PredictedPlan& plan : found.others)
    if (plan.fits) rest.push_back(&plan);
  std::ranges::stable_sort(rest, {}, [](const PredictedPlan* p) { return p->step.seconds; });
  for (const PredictedPlan* plan : rest) add(plan->name, plan->splits, plan->step);
  return c;
}

/// Seconds of some steps, each of the rank that took longest. Collective.
inline void time(TimedPlan& plan, const Network& network, const Dataset& data,
                 const Communicator& ranks, const Optimizer& optimizer, TrainerOptions options,
                 const ChooseOptions& choose) {
  options.splits = plan.splits();
  Trainer trainer(network, ranks, optimizer, std::move(options));
  Loader loader = trainer.loader(data, true, {.augment = false});
  const Batch& batch = loader.next();
  double all = 0;
  for (int i = 0; i <= choose.steps && (i < 2 || all < choose.seconds); ++i) {
    ranks.barrier();
    const double begin = now();
    trainer.step(batch, loader.batches(), loader.batches());
    const double took = ranks.all_reduce_value(now() - begin, ReduceOp::max);
    if (i > 0) plan.seconds.push_back(took), all += took;
  }
}

/// Each plan on these ranks, the fastest first. Collective.
inline void time(Candidates& c, const Network& network, const Dataset& data,
                 const Communicator& ranks, const Optimizer& optimizer,
                 const TrainerOptions& options, const ChooseOptions& choose) {
  take_turns(c.plans, choose.rounds, [&](TimedPlan& plan) {
    time(plan, network, data, ranks, optimizer, options, choose);
  });
  const double data_takes = c.plans[0].median;
  const bool is_data = c.plans[0].name == "data";
  std::ranges::stable_sort(c.plans, {}, [&](const TimedPlan& plan) {
    const bool first = is_data && plan.name == "data";
    return first ? (1 - choose.margin) * data_takes : plan.median;
  });
}

/// What `work` returns on some of the ranks, rank 0 among them, on all; what it throws there, all
/// throw.
template <class Work>
Candidates of_some(const Communicator& some, const Communicator& ranks, Work&& work) {
  std::string found;
  if (ranks.rank() < some.size()) {
    try {
      found = "ok " + work().text();
    } catch (const PeerError&) {
      throw;
    } catch (const Error& e) {
      found = lamina::text("no ", e.what());
    }
  }
  found = ranks.broadcast_text(std::move(found));
  check(found.starts_with("ok "), found.substr(3));
  return Candidates::of(found.substr(3));
}

}  // namespace detail::timed_plans

LAMINA_INLINE std::vector<Split> TimedPlan::splits() const {
  std::vector<Split> all;
  for (const PlanPrediction::Layer& layer : prediction.layers) all.push_back(layer.split);
  return all;
}

LAMINA_INLINE ChosenPlan choose_plan(const Network& network, const Dataset& data,
                                     const Communicator& ranks, const Optimizer& optimizer,
                                     TrainerOptions options, const Cluster& cluster,
                                     const ChooseOptions& choose,
                                     std::shared_ptr<const LayerTimes> times) {
  namespace d = detail::timed_plans;
  check(choose.plans >= 1 && choose.rounds >= 1 && choose.steps >= 1,
        "expected at least one plan, round and step, got ", choose.plans, ", ", choose.rounds,
        " and ", choose.steps);
  const int n = choose.ranks > 0 ? choose.ranks : ranks.size();
  check(n <= ranks.size(), "a plan for ", n, " ranks: there are ", ranks.size());
  std::vector<int> first(std::size_t(ranks.rank() < n ? n : 0));  // none elsewhere
  std::iota(first.begin(), first.end(), 0);
  const Communicator some = n < ranks.size() ? ranks.group(first) : ranks;
  options.splits.clear();
  const auto settle = [&](const d::Candidates& c) {
    options.micro_batch = c.micro_batches > 1 ? options.batch / c.micro_batches : 0;
    options.shard_optimizer = c.shards, options.recompute = c.recompute;
  };
  const d::Candidates c = d::of_some(some, ranks, [&] {
    d::Candidates found = d::Candidates::of(on_first(some, [&] {
      return d::candidates(network, optimizer.rule(), options, cluster, n, choose, times).text();
    }));
    settle(found);
    d::time(found, network, data, some, optimizer, options, choose);
    return found;
  });
  settle(c);

  ChosenPlan chosen{.training = std::move(options), .bought = c.bought, .timed = c.plans};
  chosen.training.splits = c.plans[0].splits();
  chosen.plan = plan_of(decisions_of(network, chosen.training.splits, c.recompute), {}, n);
  chosen.plan.shard_optimizer = c.shards, chosen.plan.micro_batches = c.micro_batches;
  chosen.plan.prediction = c.plans[0].prediction;
  for (const TimedPlan& plan : c.plans)
    chosen.plan.timed.push_back({plan.name, plan.prediction.seconds, plan.median});
  return chosen;
}

}  // namespace lamina
