// How plans are run beside their predictions.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/median.hpp>
#include <lamina/base/random.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/plan/detail/possible_plans.hpp>
#include <lamina/profile/measure.hpp>
#include <lamina/profile/usage.hpp>
#include <lamina/train/validate_plans.hpp>

#include <algorithm>
#include <sstream>

namespace lamina {

namespace detail::validate {

/// Plans that differ, and fit.
class Mixer {
 public:
  Mixer(StepModel& model, const UpdateRule& rule, const ValidateOptions& how)
      : model_(model), rule_(rule), how_(how) {
    model_.add_splits(how.planner.most_splits);
  }

  void add(std::string name, std::vector<Split> splits) {
    for (const ValidatedPlan& known : plans)
      if (known.splits == splits) return;
    const double seconds = model_.seconds(model_.select(splits));
    if ((name == "data" || seconds <= how_.longest) && fits(splits))
      plans.push_back({.name = std::move(name), .splits = std::move(splits)});
  }
  /// The first layers of one plan, the rest of another, and some layers split by chance.
  void mix() {
    const std::size_t pure = plans.size();
    const int vertices = int(model_.network().graph().size());
    const int tries = 20 * how_.plans;
    for (int i = 0; i < tries && int(plans.size()) < how_.plans && pure > 0; ++i) {
      const Random random(how_.seed, std::uint64_t(i));
      std::vector<Split> splits = plans[random.below(pure, 0)].splits;
      const std::vector<Split>& other = plans[random.below(pure, 1)].splits;
      const auto cut = std::ptrdiff_t(random.below(std::uint64_t(vertices), 2));
      std::copy(other.begin() + cut, other.end(), splits.begin() + cut);
      const double part = 0.02 * double(1 << i % 5);  // of the layers: 2 % to 32 %
      for (int v = 1; v < vertices; ++v) {            // no word of the stream is used twice
        const auto n = std::uint64_t(2 * v + 3);
        if (random.uniform(2 * n) < part)
          splits[std::size_t(v)] = model_.splits(v)[random.below(model_.splits(v).size(), n + 1)];
      }
      add(text("mixed ", plans.size() - pure + 1), std::move(splits));
    }
  }

  std::vector<ValidatedPlan> plans = {};

 private:
  bool fits(const std::vector<Split>& splits) const {
    const int ranks = model_.ranks();
    return double(most_memory(model_.network(), model_.options(), splits, ranks, rule_).total()) <=
           model_.cluster().least_memory(ranks);
  }

  StepModel& model_;
  const UpdateRule& rule_;
  const ValidateOptions& how_;
};

inline std::string to_text(const std::vector<ValidatedPlan>& plans) {
  std::string s;
  for (const ValidatedPlan& p : plans) {
    append(s, text(p.name, '\n', p.splits.size(), '\n'));
    for (const Split& split : p.splits) append(s, text(split, '\n'));
  }
  return s;
}
inline std::vector<ValidatedPlan> from_text(const std::string& s) {
  std::vector<ValidatedPlan> plans;
  std::istringstream from(s);
  std::string line;
  while (std::getline(from, line)) {
    ValidatedPlan plan{.name = line};
    std::getline(from, line);
    for (int left = std::stoi(line); left > 0 && std::getline(from, line); --left)
      plan.splits.push_back(parse_split(line));
    plans.push_back(std::move(plan));
  }
  return plans;
}

/// Adds to a layer's.
inline void add(std::vector<Compared>& to, std::string_view layer, std::string_view kind,
                double predicted, double measured) {
  if (predicted <= 0 && measured <= 0) return;
  auto at = std::ranges::find_if(
      to, [&](const Compared& c) { return c.layer == layer && c.kind == kind; });
  if (at == to.end()) to.push_back({std::string(layer), std::string(kind)}), at = to.end() - 1;
  at->predicted += predicted, at->measured += measured;
}

constexpr std::string_view all_gradients = "gradients, also hidden";

inline void compare_predicted(ValidatedPlan& plan, const PredictedStep& step,
                              const Network& network) {
  for (std::size_t v = 1; v < step.layers.size(); ++v) {
    const PredictedLayer& l = step.layers[v];
    add(plan.kernels, l.name, network.graph()[v].layer->type(), l.kernel_seconds(), 0);
    add(plan.waiting, l.name, "activations", l.collectives, 0);
    add(plan.waiting, l.name, "halo", l.halo, 0);
    add(plan.waiting, l.name, "redistribution", l.redistribution, 0);
    add(plan.waiting, l.name, "gradients", l.gradients, 0);
    add(plan.waiting, l.name, all_gradients, l.reduction, 0);
  }
}

/// The mean of ranks, whose parts are as large as each other but for a row: what is predicted is
/// of the one that has the most.
inline void compare_measured(ValidatedPlan& plan, const Profile& profile,
                             const PlacedNetwork& network) {
  for (const ProfileRow& r : profile.rows) {
    const bool outside = r.layer < 0;
    const Step* step = outside ? nullptr : &network.steps()[std::size_t(r.layer)];
    const bool moves = step && step->inserted();
    // What is brought to a layer counts with it.
    const std::string& layer =
        step ? network.network().graph()[std::size_t(step->vertex)].name : r.name;
    const bool gradients = r.pass == Pass::weight_grad || r.pass == Pass::update;
    const bool halo = std::ranges::find(r.kernels, "halo", &ProfileKernel::what) != r.kernels.end();
    add(plan.kernels, layer, outside ? outside_layers : std::string_view(r.type), 0, r.time.mean);
    add(plan.waiting, layer,
        outside     ? outside_layers
        : moves     ? "redistribution"
        : gradients ? "gradients"
        : halo      ? "halo"
                    : "activations",
        0, r.exposed.mean);
    if (gradients && !outside) add(plan.waiting, layer, all_gradients, 0, r.comm.mean);
  }
}

/// Seconds of a round: the median of the half of its steps in which ranks were denied least.
struct Round {
  struct Step {
    double denied = 0, seconds = 0;
  };
  std::vector<Step> steps = {};

  double seconds() {
    std::ranges::sort(steps, {}, &Step::denied);
    std::vector<double> calm;
    for (std::size_t i = 0; i < (steps.size() + 1) / 2; ++i) calm.push_back(steps[i].seconds);
    return median(std::move(calm));
  }
};

/// Places a plan and runs a round of it; layers are `compared` with what was predicted, if it is
/// there.
inline void run(ValidatedPlan& plan, const Network& network, const Dataset& data,
                const World& world, const Optimizer& optimizer, TrainerOptions options,
                const PredictedStep* compared, double seconds) {
  const Communicator& ranks = world.comm();
  options.splits = plan.splits;
  Trainer trainer(network, ranks, optimizer, std::move(options));
  Loader loader = trainer.loader(data, true, {.augment = false});
  const Batch& batch = loader.next();
  Stream& stream = trainer.stream();
  const auto step = [&] { trainer.step(batch, loader.batches(), 1 << 20), stream.wait(); };
  stream.silence(true), step(), stream.silence(false);  // first touch, on a network however slow
  const int count = std::clamp(int(seconds / std::max(plan.calibrated, 1e-6)), 1, 20);
  Profiler profiler(4096, std::size_t(count));
  if (compared) stream.record_to(&profiler);
  Round round;
  for (int i = 0; i < count; ++i) {
    ranks.barrier();
    if (compared) profiler.begin_step();
    const double denied = usage().denied, begin = now();
    step();
    const double took = ranks.all_reduce_value(now() - begin, ReduceOp::max);
    if (compared) profiler.end_step();
    round.steps.push_back(
        {ranks.all_reduce_value(usage().denied - denied, ReduceOp::max) / took, took});
  }
  plan.rounds.push_back(round.seconds());
  if (!compared) return;
  stream.record_to(nullptr);
  compare_predicted(plan, *compared, network);
  compare_measured(plan, make_profile(trainer.network(), profiler, optimizer.rule(), ranks),
                   trainer.network());
}

}  // namespace detail::validate

LAMINA_INLINE Validation validate_plans(const Network& network, const Dataset& data,
                                        const World& world, const Optimizer& optimizer,
                                        TrainerOptions options, const Calibration& calibration,
                                        const ValidateOptions& how) {
  namespace d = detail::validate;
  check(how.plans >= 1 && how.rounds >= 1, "expected at least one plan and round, got ", how.plans,
        " and ", how.rounds);
  const int n = world.size();
  const Cluster& cluster = calibration.cluster;
  const UpdateRule& rule = optimizer.rule();
  options.splits.clear(), options.recompute.clear();
  options.micro_batch = 0, options.shard_optimizer = options.fuse = false;
  PlaceOptions placing = placing_of(options);
  placing.backend = make_backend(options.backend, options.dtype.compute);

  MeasuredTimes times = *calibration.times;
  std::vector<ValidatedPlan> plans = d::from_text(on_first(world, [&] {
    StepModel model(network, placing, rule, cluster, n, calibration.times);
    d::Mixer mixer(model, rule, how);
    for (const auto& [name, splits] : detail::possible_plans(network, placing.batch, n))
      mixer.add(std::string(name), splits);
    PlannerOptions planner = how.planner;
    planner.buys = false;
    mixer.add(
        "auto",
        find_plan(network, placing, rule, cluster, n, planner, calibration.times).best.splits);
    mixer.mix();
    return d::to_text(mixer.plans);
  }));
  for (const ValidatedPlan& p : plans) measure_layers(times, network, placing, p.splits, world);
  StepModel formulas(network, placing, rule, cluster, n, std::make_shared<FormulaTimes>(cluster));
  StepModel calibrated(network, placing, rule, cluster, n, std::make_shared<MeasuredTimes>(times));
  std::vector<PredictedStep> steps;
  for (ValidatedPlan& p : plans) {
    p.formulas = formulas.seconds(formulas.select(p.splits));
    steps.push_back(calibrated.predict(calibrated.select(p.splits)));
    p.calibrated = world.comm().all_gather_value(steps.back().seconds)[0];
  }
  for (int round = 1; round <= how.rounds; ++round)
    for (std::size_t i = 0; i < plans.size(); ++i)
      d::run(plans[i], network, data, world, optimizer, options,
             round == how.rounds ? &steps[i] : nullptr, how.seconds);
  for (ValidatedPlan& p : plans) p.measured = median(p.rounds);
  return {.cluster = cluster.name,
          .ranks = n,
          .nodes = n / cluster.devices_per_node,
          .batch = placing.batch,
          .plans = std::move(plans)};
}

}  // namespace lamina
