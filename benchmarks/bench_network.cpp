// bench_network: how fast a model trains, and what every layer of it costs. Start it with mpirun
// for more than one rank. Throughput comes from a clean pass; the table from recorded steps after
// it.
#include "flags.hpp"
#include "session.hpp"
#include "signals.hpp"
#include "terminal.hpp"

#include <lamina/base/median.hpp>
#include <lamina/base/signal_thread.hpp>
#include <lamina/profile/measure.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

namespace {

using namespace lamina;

struct BenchOptions : cli::RunOptions {
  std::int64_t warmup = 10, iters = 100, display_every = 10;
  int profile_steps = 5;
};

/// "198.1 +/- 0.2 (jitter = 0.3)": mean, standard error, 1.4826 * median |x - median|.
std::string statistics(const std::vector<double>& x) {
  double mean = 0, square = 0;
  for (const double v : x) mean += v / double(x.size());
  for (const double v : x) square += (v - mean) * (v - mean) / double(x.size());
  const double middle = median(x);
  std::vector<double> off;
  for (const double v : x) off.push_back(std::abs(v - middle));
  return format("%.1f +/- %.1f (jitter = %.1f)", mean, std::sqrt(square / double(x.size())),
                1.4826 * median(off));
}

int bench(BenchOptions& o, World& world) {
  const SignalThread apart;
  const bool first = world.rank() == 0;
  if (cli::lists_models(o, world)) return 0;
  cli::check_recorded(o, o.profile_steps);
  cli::prepare(o, world);
  const auto data = cli::open(o, {});
  const Network net = cli::make_network(o, *data);
  const std::int64_t global_batch = o.batch(world.size(), 16);
  const cli::RunPlan plan = cli::make_plan(o, net, global_batch, world);
  const auto ranges = cli::ranges(o);
  Trainer trainer(net, world, cli::make_optimizer(o), cli::trainer_options(o, global_batch, plan));
  trainer.stream().listen_with(ranges.get());
  cli::write_plan_out(o, plan, world);
  const auto trace = cli::open_trace(o, world, trainer.network());
  // Synthetic data: one batch, again and again, so that making images costs nothing. Real data are
  // loaded as a training would.
  Loader loader = trainer.loader(*data, true, {.augment = o.data != "synthetic"});
  const std::string head = cli::preamble("bench_network", o, trainer, plan, world);
  if (first) {
    std::fputs(head.c_str(), stdout);
    std::fputs(cli::remark(text("data ", data->name(), ", ", o.warmup, " warm-up steps, ", o.iters,
                                " steps"))
                   .c_str(),
               stdout);
    std::puts("step\timages/sec\tloss");
    std::fflush(stdout);
  }

  const bool fixed = o.data == "synthetic";
  const Batch* batch = fixed ? &loader.next() : nullptr;
  const std::int64_t total = o.warmup + o.iters + 3 * o.profile_steps + 3;
  std::optional<cli::StopSignals> signals;  // without communication ranks could not agree on a step
  if (o.comm != "none" || world.size() == 1) signals.emplace();
  bool stopped = false;
  const auto start = [&] {
    if (signals && signals->received()) trainer.request_stop();
    fixed ? trainer.start(*batch, loader.batches(), total) : trainer.start(loader, total);
  };
  const auto finish = [&] {
    const StepResult r = trainer.finish();
    stopped = stopped || r.stop;
    return r;
  };
  // A device that runs behind its caller has the next step before this one has ended.
  const auto run = [&](std::int64_t steps, const auto& on_step) {
    for (std::int64_t i = 1; i <= steps && !stopped; ++i) {
      start();
      const int left = i < steps && trainer.ahead() ? 1 : 0;
      while (trainer.under_way() > (stopped ? 0 : left)) on_step(finish());
    }
  };

  run(o.warmup, [](const StepResult&) {});
  std::vector<double> speeds;
  world.comm().barrier();
  const double begin = now();
  run(o.iters, [&](const StepResult& r) {
    speeds.push_back(r.images_per_second);
    const auto i = std::int64_t(speeds.size());
    if (first && (i % o.display_every == 0 || i == o.iters || stopped)) {
      std::printf("%lld\timages/sec: %s\tloss %.3f\n", static_cast<long long>(i),
                  statistics(speeds).c_str(), r.loss);
      std::fflush(stdout);
    }
  });
  world.comm().barrier();
  const double speed =
      double(std::int64_t(speeds.size()) * trainer.options().batch) / (now() - begin);

  if (o.profile_steps > 0 && !stopped) {
    ProfileOptions options{.warmup = 1, .steps = o.profile_steps};
    if (trace) options.on_step = [&](const Profiler& p) { trace->step(p); };
    struct Stopped {};
    const auto end = [&] {
      finish();
      // All ranks know at the same step, unless it was one without communication.
      if (stopped && !trainer.stream().silent()) throw Stopped();
    };
    try {
      Profile profile = profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                                      trainer.optimizer().rule(), options, start, end);
      stopped = world.comm().all_reduce_value(int(stopped), ReduceOp::max) > 0;
      cli::show_profile(std::move(profile), o, plan, trainer.network(), world);
    } catch (const Stopped&) {
      while (trainer.under_way() > 0) finish();
    }
  }
  if (const std::string graph = trainer.graph(); first && !graph.empty())
    std::fputs(cli::remark(graph).c_str(), stdout);
  if (first) std::printf("total images/sec: %.2f\n", speed);
  if (!stopped) return 0;
  std::fflush(stdout);
  // All ranks leave alike, and together: where a status is not 0, nobody waits for long.
  return 128 + world.comm().all_reduce_value(signals->received(), ReduceOp::max);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How fast a model trains, and what every layer of it costs", "bench_network");
  BenchOptions o;
  cli::add_model_flags(app, o);
  cli::add_run_flags(app, o);
  cli::count(app, "--warmup", o.warmup, 0, "steps before the timed ones")->capture_default_str();
  cli::count(app, "--iters", o.iters, 1, "timed steps")->capture_default_str();
  cli::count(app, "--display-every", o.display_every, 1, "steps per line")->capture_default_str();
  cli::count(app, "--profile-steps", o.profile_steps, 0,
             "steps recorded for the table, each beside a clean one; 0 = none")
      ->capture_default_str();
  cli::add_optimizer_flags(app, o);
  cli::add_output_flags(app, o);
  return cli::run(app, argc, argv, [&](World& world) { return bench(o, world); });
}
