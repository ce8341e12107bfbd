// bench_micro_batches: what it costs to run a large batch in micro-batches. Trains with batches
// that run at once, and with batches many times as large in micro-batches of that size, in turns,
// so that a busy machine slows down both.
#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/median.hpp>

#include <cstdio>
#include <ctime>
#include <vector>

namespace {

using namespace lamina;

struct BenchOptions : cli::RunOptions {
  std::int64_t times = 16, rounds = 5;
};

/// A training on one batch, again and again: making images costs nothing.
class Run {
 public:
  Run(const Network& net, const World& world, const BenchOptions& o, const Dataset& data,
      std::int64_t batch, const cli::RunPlan& plan)
      : trainer(net, world, cli::make_optimizer(o), cli::trainer_options(o, batch, plan)),
        loader_(trainer.loader(data, true, {.augment = false})),
        batch_(loader_.next()) {}

  struct Cost {
    double seconds, cpu;  // of the slowest rank; processor seconds of all its threads
  };
  /// Of so many steps. Collective.
  Cost run(std::int64_t steps) {
    const Communicator& ranks = trainer.ranks();
    ranks.barrier();
    const double begin = now(), cpu = cpu_seconds();
    for (std::int64_t i = 0; i < steps; ++i) trainer.step(batch_, loader_.batches(), 1 << 20);
    return {ranks.all_reduce_value(now() - begin, ReduceOp::max),
            ranks.all_reduce_value(cpu_seconds() - cpu, ReduceOp::max)};
  }

  Trainer trainer;

 private:
  static double cpu_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

  Loader loader_;
  const Batch& batch_;
};

int bench(BenchOptions& o, World& world) {
  const bool first = world.rank() == 0;
  if (cli::lists_models(o, world)) return 0;
  cli::prepare(o, world);
  const auto data = cli::open(o, {});
  const Network net = cli::make_network(o, *data);
  const std::int64_t batch = o.batch(world.size(), 16);
  cli::RunPlan plan = cli::make_plan(o, net, batch, world);
  const std::int64_t at_once = plan.micro_batch > 0 ? plan.micro_batch : batch;
  plan.micro_batch = 0;
  Run small(net, world, o, *data, at_once, plan);
  plan.micro_batch = at_once;
  Run large(net, world, o, *data, o.times * at_once, plan);
  const std::string head = cli::preamble("bench_micro_batches", o, large.trainer, plan, world);
  if (first)
    std::printf(
        "%s# images/s of batch %lld, and of batch %lld; their ratio, and that of what an image\n"
        "# takes of the processors, which a busy machine disturbs less\n"
        "round     alone  together  ratio  processors\n",
        head.c_str(), static_cast<long long>(at_once), static_cast<long long>(o.times * at_once));
  small.run(2), large.run(1);  // warm
  const double images = double(o.times * at_once);
  std::vector<double> rates, processors;
  for (std::int64_t i = 1; i <= o.rounds; ++i) {
    const Run::Cost alone = small.run(o.times), together = large.run(1);
    rates.push_back(alone.seconds / together.seconds);
    processors.push_back(together.cpu / alone.cpu);
    if (!first) continue;
    std::printf("%5lld  %8.2f  %8.2f  %5.3f  %10.3f\n", static_cast<long long>(i),
                images / alone.seconds, images / together.seconds, rates.back(), processors.back());
    std::fflush(stdout);
  }
  if (first)
    std::printf("median                    %5.3f  %10.3f\n", median(rates), median(processors));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What it costs to run a large batch in micro-batches", "bench_micro_batches");
  BenchOptions o;
  o.lr = 1e-5;  // so many steps on one batch must not make the loss infinite
  cli::add_model_flags(app, o);
  cli::add_run_flags(app, o);
  cli::add_optimizer_flags(app, o);
  cli::count(app, "--times", o.times, 1, "micro-batches in the large batch")->capture_default_str();
  cli::count(app, "--rounds", o.rounds, 1, "in each both run as many images")
      ->capture_default_str();
  return cli::run(app, argc, argv, [&](World& world) { return bench(o, world); });
}
