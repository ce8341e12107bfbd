// --plan auto: measures the machine and the layers, searches plans, and times the best of them.
#include "plan.hpp"
#include "session.hpp"
#include "terminal.hpp"

#include <lamina/comm/memory_per_rank.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/train/choose_plan.hpp>
#include <lamina/train/micro_batch.hpp>

#include <cstdio>
#include <utility>

namespace lamina::cli {

namespace {

void say(const ChosenPlan& chosen, const std::string& on) {
  const Calibration& calibration = chosen.calibration;
  std::string s = remark(text("plan auto", on, ": ", calibration.measured, " layers measured",
                              calibration.settled ? "" : "; some of the best plan's are not known",
                              "; a step takes"));
  for (const TimedPlan& plan : chosen.timed)
    append(s, remark(format("  %-18s %9.2f ms, predicted %9.2f ms%s", plan.name.c_str(),
                            1e3 * plan.median, 1e3 * plan.prediction.seconds,
                            &plan == &chosen.timed[0] ? ", taken" : "")));
  if (!chosen.bought.empty())
    append(s, remark(text("  so that it fits into memory: ", in_words(chosen.bought))));
  std::fputs(s.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

ChosenPlan auto_plan(const RunOptions& o, const Network& net, std::int64_t batch,
                     const World& world, int ranks, std::shared_ptr<const Cluster>& measured) {
  check(o.comm != "none", "--plan auto times plans, and so needs communication: got --comm none");
  TrainerOptions training = trainer_options(o, batch, {.micro_batch = o.micro_batch});
  training.shard_optimizer = o.shard_optimizer;
  training.evaluation_batch = 0;  // does nothing to a step
  const auto backend = make_backend(o.backend, training.dtype);
  if (!measured) measured = std::make_shared<Cluster>(measure_cluster(world, *backend));
  Cluster cluster = *measured;
  const double memory = memory_per_rank(world, backend->memory(), o.memory);
  for (Nodes& nodes : cluster.nodes)  // less what is kept for what is not predicted
    nodes.device.memory = memory * (1 - MicroBatchOptions().reserve);
  ChosenPlan chosen = lamina::plan(net, world, make_optimizer(o), std::move(training),
                                   std::move(cluster), {.ranks = ranks});
  if (world.rank() == 0) say(chosen, ranks < world.size() ? text(" on ", ranks) : "");
  return chosen;
}

}  // namespace lamina::cli
