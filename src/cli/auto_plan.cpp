// --plan auto: measures the machine and the layers, searches plans, and times the best of them.
#include "plan.hpp"
#include "session.hpp"
#include "terminal.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/train/choose_plan.hpp>

#include <cstdio>
#include <memory>

namespace lamina::cli {

namespace {

/// Made-up images as the network takes them.
std::unique_ptr<Dataset> made_up(const Network& net, std::int64_t batch) {
  const Shape x = net.sample();
  const auto& loss = net.graph().back();
  const std::vector<Shape> xs = net.input_shapes(loss, 1);
  check(loss.layer->is_loss() && loss.layer->targets(xs).shape.size() == 1,
        "--plan auto times plans on made-up images with a label each: this network takes others");
  return synthetic(
      {.limit = batch, .channels = x.c, .height = x.h, .width = x.w, .classes = int(xs[0].c)});
}

void say(const ChosenPlan& chosen, const Calibration& calibration) {
  std::string s = remark(text("plan auto: ", calibration.measured, " layers measured",
                              calibration.settled ? "" : "; some of the best plan's are not known",
                              "; a step takes"));
  for (const TimedPlan& plan : chosen.timed)
    append(s, remark(format("  %-18s %9.2f ms, predicted %9.2f ms%s", plan.name.c_str(),
                            1e3 * plan.median, 1e3 * plan.predicted,
                            &plan == &chosen.timed[0] ? ", taken" : "")));
  std::fputs(s.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

Plan auto_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world) {
  check(o.comm != "none", "--plan auto times plans, and so needs communication: got --comm none");
  TrainerOptions training = trainer_options(o, batch, {});
  training.micro_batch = 0, training.shard_optimizer = o.shard_optimizer;
  const Optimizer optimizer = make_optimizer(o);
  const auto backend = make_backend(o.backend, training.dtype.compute);
  PlaceOptions placing = placing_of(training);
  placing.backend = backend;
  ChooseOptions choose;
  choose.planner.buys = false;  // what is bought is for flags to say: they are what runs
  const Calibration calibration =
      calibrate(net, placing, optimizer.rule(), world, {.planner = choose.planner});
  const ChosenPlan chosen =
      choose_plan(net, *made_up(net, batch), world, optimizer, std::move(training),
                  calibration.cluster, choose, calibration.times);
  if (world.rank() == 0) say(chosen, calibration);
  return chosen.plan;
}

}  // namespace lamina::cli
