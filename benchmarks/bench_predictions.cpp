// bench_predictions: how long steps of a model take under the built-in plans and the best one that
// was found, as predicted by formulas, as predicted from what was measured here, and in fact.
#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/median.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/threads.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/profile/measure.hpp>
#include <lamina/profile/usage.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace lamina;

struct Options {
  std::string model = "lenet", backend = "auto";
  std::int64_t batch = 32;
  int threads = 0, steps = 10;
  double seconds = 60;
  bool layers = false;
};

/// Seconds of a step: the middle one of those in which ranks were denied their processor least, of
/// four times as many.
double measured_step(Trainer& trainer, const Dataset& data, int steps) {
  Loader loader = trainer.loader(data, true);
  const Batch& batch = loader.next();
  std::vector<std::pair<double, double>> all;  // part of it that was denied, seconds
  for (int i = 0; i < 4 * steps + 2; ++i) {
    const double before = usage().denied;
    const double took = trainer.step(batch, loader.batches(), 4 * steps + 2).seconds;
    const double denied = (usage().denied - before) / took;
    if (i >= 2)
      all.push_back({trainer.ranks().all_reduce_value(denied, ReduceOp::max),
                     trainer.ranks().all_reduce_value(took, ReduceOp::max)});
  }
  std::sort(all.begin(), all.end());
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) seconds.push_back(all[std::size_t(i)].second);
  return median(seconds);
}

/// Kernels, and all waiting, of each layer: predicted and recorded, in ms.
void show_layers(const PredictedStep& step, Trainer& trainer, const Dataset& data, bool first) {
  Loader loader = trainer.loader(data, true);
  const Batch& batch = loader.next();
  const Profile p = profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                                  trainer.optimizer().rule(), {.steps = 5, .alone = false},
                                  [&] { trainer.step(batch, loader.batches(), 1 << 20); });
  if (!first) return;
  std::printf("    %-34s %9s %9s %9s %9s\n", "layer", "kernels", "recorded", "waiting", "recorded");
  for (const PredictedLayer& l : step.layers) {
    double kernels = 0, waiting = 0;
    for (const ProfileRow& r : p.rows) {
      const bool own = r.name == l.name || r.name.starts_with(l.name + ".re");
      if (own) kernels += r.time.mean, waiting += r.exposed.mean;
    }
    std::printf("    %-34s %9.3f %9.3f %9.3f %9.3f\n", l.name.c_str(), 1e3 * l.kernel_seconds(),
                1e3 * kernels, 1e3 * (l.seconds() - l.kernel_seconds()), 1e3 * waiting);
  }
}

void bench(const Options& o, World& world) {
  set_threads(o.threads > 0 ? o.threads : default_threads(world.local_size()));
  const bool first = world.rank() == 0;
  const Network net = make_model(o.model);
  const std::shared_ptr<const Backend> backend = make_backend(o.backend, DType::f32);
  const PlaceOptions placing{.batch = o.batch, .backend = backend};
  const Optimizer optimizer(SGD{.rate = 1e-4, .momentum = 0.9});
  const UpdateRule& rule = optimizer.rule();
  double begin = now();
  const Cluster cluster = measure_cluster(world, *backend);
  const double machine = now() - begin;
  begin = now();
  const Calibration c = calibrate(net, placing, rule, world, cluster, {.seconds = o.seconds});
  if (first)
    std::printf(
        "# %s, batch %lld, %d ranks, %d threads each, %s\n# cluster in %.1f s: %.1f GB/s, "
        "contention %.2f, link %.1f us, %.2f GB/s; %d layers measured in %.1f s, %s\n",
        o.model.c_str(), static_cast<long long>(o.batch), world.size(), threads(),
        backend->description().c_str(), machine, cluster.nodes[0].device.bandwidth / 1e9,
        cluster.contention, cluster.inside.latency * 1e6, cluster.inside.bandwidth / 1e9,
        c.measured, now() - begin, c.settled ? "settled" : "not settled");
  StepModel formulas(net, placing, rule, cluster, world.size(),
                     std::make_shared<FormulaTimes>(cluster));
  StepModel calibrated(net, placing, rule, cluster, world.size(), c.times);
  const FoundPlan found = find_plan(net, placing, rule, cluster, world.size(), {}, c.times);
  const auto data = open_data(
      "synthetic", {.channels = net.sample().c, .height = net.sample().h, .width = net.sample().w});
  if (first)
    std::printf("%-10s %12s %12s %12s %9s %9s\n", "plan", "formulas ms", "calibrated", "measured",
                "error f", "error c");
  std::vector<std::string_view> names = plan_names();
  names.push_back("auto");
  for (const std::string_view name : names) {
    std::vector<Split> splits = found.best.splits;
    if (name != "auto")
      splits =
          splits_of(decide(built_in_plan(name, net, o.batch, world.size()), net, o.batch, true));
    const double by_formula = formulas.seconds(formulas.select(splits));
    const PredictedStep step = calibrated.predict(calibrated.select(splits));
    Trainer trainer(net, world, optimizer,
                    {.batch = o.batch, .backend = o.backend, .splits = splits});
    const double took = measured_step(trainer, *data, o.steps);
    if (first)
      std::printf("%-10s %12.3f %12.3f %12.3f %8.1f%% %8.1f%%\n", std::string(name).c_str(),
                  1e3 * by_formula, 1e3 * step.seconds, 1e3 * took, 100 * (by_formula / took - 1),
                  100 * (step.seconds / took - 1));
    if (o.layers) show_layers(step, trainer, *data, first);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How long steps take: predicted, calibrated, measured", "bench_predictions");
  Options o;
  app.add_option("--model", o.model, "one of the models")->capture_default_str();
  app.add_option("--backend", o.backend, "auto, reference or onednn")->capture_default_str();
  cli::count(app, "--batch-size", o.batch, 1, "samples, over all ranks")->capture_default_str();
  cli::count(app, "--threads", o.threads, 0, "of each rank; 0: its share")->capture_default_str();
  cli::count(app, "--steps", o.steps, 1, "that count, a quarter of those that run")
      ->capture_default_str();
  app.add_option("--seconds", o.seconds, "that measuring layers may take")->capture_default_str();
  app.add_flag("--layers", o.layers, "every layer's kernels and waiting, predicted and recorded");
  return cli::run(app, argc, argv, [&](World& world) {
    bench(o, world);
    return 0;
  });
}
