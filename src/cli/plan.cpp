#include "plan.hpp"

#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/comm/memory_per_rank.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/train/micro_batch.hpp>

#include <algorithm>
#include <functional>
#include <optional>

namespace lamina::cli {

bool built_in(const std::string& name) {
  const auto names = plan_names();
  return std::ranges::find(names, name) != names.end();
}

namespace {

/// The plan of a file, or the error that all ranks throw. Only rank 0 need see the file.
Plan plan_in_file(const std::string& path, const World& world) {
  Plan plan = parse_plan(on_first(world.comm(), [&] {
    std::vector<std::string_view> names = plan_names();
    names.emplace_back("auto");
    check(names_a_file(path), "--plan: plan '", path, "' is not known", suggestion(path, names),
          ": expected ", CLI::detail::join(names, ", "), " or a file");
    return for_flag("--plan", [&] { return plan_json(read_plan(path)); });
  }));
  const std::string origin = text("--plan ", path);
  for (Plan::Rule& rule : plan.rules) rule.origin = origin;
  for (Plan::Recompute& r : plan.recomputed) r.origin = origin;
  return plan;
}

/// The plan of a file or of --plan auto, whatever runs at once; nothing for one that is built in.
std::optional<Plan> found_plan(const RunOptions& o, const Network& net, std::int64_t batch,
                               const World& world, int ranks,
                               std::shared_ptr<const Cluster>& measured) {
  if (o.plan == "auto") return auto_plan(o, net, batch, world, ranks, measured).plan;
  if (built_in(o.plan)) return std::nullopt;
  Plan plan = plan_in_file(o.plan, world);
  check(plan.model.empty() || plan.model == o.model, "--plan ", o.plan, ": is for model ",
        plan.model, ", but this run has ", o.model);
  check(plan.ranks == ranks, "--plan ", o.plan, ": is for ", plan.ranks,
        plan.ranks == 1 ? " rank" : " ranks", ", but there ", ranks == 1 ? "is " : "are ", ranks);
  return plan;
}

/// With --split and --recompute on top; they are named in `name`.
void add_flags(Plan& plan, const RunOptions& o, std::string& name) {
  for (const std::string& rule : o.split) {
    const std::string origin = text("--split ", rule);
    const auto equals = rule.rfind('=');
    check(equals != rule.npos && equals > 0, origin,
          ": expected LAYER=AXIS:PARTS,..., as in 'conv1*=height:2,batch:2'");
    naming(origin, [&] {
      plan.split(rule.substr(0, equals), parse_split(rule.substr(equals + 1)), origin);
    });
    append(name, text(&rule == &o.split[0] ? ", with " : " ", origin));
  }
  for (const std::string& layers : o.recompute) {
    check(!layers.empty(), "--recompute: expected the name of a layer, or a pattern");
    plan.recompute(layers, text("--recompute ", layers));
  }
}

/// A run with so many samples at once, under a plan with the other flags on top.
RunPlan run_under(Plan plan, const RunOptions& o, const Network& net, std::int64_t batch,
                  std::int64_t at_once, int ranks) {
  RunPlan run{.name = o.plan, .micro_batch = at_once < batch ? at_once : 0};
  add_flags(plan, o, run.name);
  run.decisions = decide(plan, net, at_once, o.allow_fallback);
  run.plan = plan_of(run.decisions, o.model, ranks);
  run.plan.shard_optimizer = plan.shard_optimizer || o.shard_optimizer;
  run.plan.micro_batches = int(batch / at_once);
  run.shown =
      o.plan != "data" || !o.split.empty() || !o.recompute.empty() || run.plan.shard_optimizer;
  if (o.split.empty() && o.recompute.empty() && run.plan.shard_optimizer == plan.shard_optimizer &&
      run.plan.micro_batches == plan.micro_batches)  // else it is another plan by now
    run.plan.timed = std::move(plan.timed), run.plan.prediction = std::move(plan.prediction);
  return run;
}

/// The run with as many samples at once as fit into memory; `with` says how so many run.
/// Collective.
RunPlan largest_run(const RunOptions& o, const Network& net, std::int64_t batch, const World& world,
                    const std::function<RunPlan(std::int64_t)>& with) {
  const auto backend = make_backend(o.backend, parse_dtype(o.dtype));
  const MicroBatchOptions within{.memory = memory_per_rank(world, backend->memory(), o.memory),
                                 .loader_threads = o.loader_threads};
  const auto trained = [&](std::int64_t n) { return trainer_options(o, batch, with(n)); };
  const MicroBatch found = naming("--micro-batch auto", [&] {
    return largest_micro_batch(net, batch, trained, make_optimizer(o).rule(), world.size(), within);
  });
  RunPlan run = with(found.samples);
  run.fits =
      text("micro-batch ", found.samples, " of ", batch, ": ", in_bytes(found.bytes), " of ",
           in_bytes(found.memory), o.memory > 0 ? "" : " free",
           world.size() > 1 ? " for a rank" : "", ", ", 100 * within.reserve, " % in reserve");
  return run;
}

}  // namespace

RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world) {
  return make_plan(o, net, batch, world, world.size());
}

RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world,
                  int ranks, std::shared_ptr<const Cluster> measured) {
  check(o.memory == 0 || o.fits_memory || o.plan == "auto",
        "--memory: expected --micro-batch auto or --plan auto with it, which fit into it");
  std::int64_t at_once = o.at_once(batch);
  const std::optional<Plan> found = found_plan(o, net, batch, world, ranks, measured);
  const auto with = [&](std::int64_t n) {
    if (o.plan == "data" && o.split.empty()) check_batch(n, ranks);
    RunPlan run =
        run_under(found ? *found : built_in_plan(o.plan, net, n, ranks), o, net, batch, n, ranks);
    run.measured = measured;
    return run;
  };
  if (o.fits_memory && o.plan != "auto") return largest_run(o, net, batch, world, with);
  if (o.micro_batch == 0 && found && found->micro_batches > 1) {
    check(batch % found->micro_batches == 0, "--plan ", o.plan, ": its ", found->micro_batches,
          " micro-batches do not divide the global batch of ", batch);
    at_once = batch / found->micro_batches;
  }
  return with(at_once);
}

void write_plan_out(const RunOptions& o, const RunPlan& plan, const World& world) {
  if (world.rank() != 0 || o.plan_out.empty()) return;
  for_flag("--plan-out", [&] { write_plan(o.plan_out, plan.plan); });
}

}  // namespace lamina::cli
