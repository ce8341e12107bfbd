#include "plan.hpp"

#include "flags.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/comm/alike.hpp>

#include <algorithm>

namespace lamina::cli {

namespace {

bool built_in(const std::string& name) {
  const auto names = plan_names();
  return std::ranges::find(names, name) != names.end();
}

/// The plan of a file, or the error that all ranks throw. Only rank 0 need see the file.
Plan plan_in_file(const std::string& path, const World& world) {
  Plan plan = parse_plan(on_first(world.comm(), [&] {
    if (!names_a_file(path))  // says which names there are
      naming("--plan", [&] { built_in_plan(path, Network({.c = 1}), 1, 1); });
    return for_flag("--plan", [&] { return plan_json(read_plan(path)); });
  }));
  const std::string origin = text("--plan ", path);
  for (Plan::Rule& rule : plan.rules) rule.origin = origin;
  for (Plan::Recompute& r : plan.recomputed) r.origin = origin;
  return plan;
}

}  // namespace

RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world) {
  return make_plan(o, net, batch, world, world.size());
}

RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world,
                  int ranks) {
  RunPlan run{.name = o.plan, .micro_batch = o.micro_batch};
  std::int64_t at_once = o.at_once(batch);
  if (o.plan == "data" && o.split.empty()) check_batch(at_once, ranks);
  Plan plan;
  if (o.plan == "auto") {
    check(ranks == world.size(),
          "--plan auto times plans on all ranks: expected another --plan with "
          "--elastic");
    ChosenPlan chosen = auto_plan(o, net, batch, world);
    plan = std::move(chosen.plan);
  } else if (built_in(o.plan)) {
    plan = built_in_plan(o.plan, net, at_once, ranks);
  } else {
    plan = plan_in_file(o.plan, world);
    check(plan.model.empty() || plan.model == o.model, "--plan ", o.plan, ": is for model ",
          plan.model, ", but this run has ", o.model);
    check(plan.ranks == ranks, "--plan ", o.plan, ": is for ", plan.ranks,
          plan.ranks == 1 ? " rank" : " ranks", ", but there ", ranks == 1 ? "is " : "are ", ranks);
  }
  if (o.micro_batch == 0 && plan.micro_batches > 1) {
    check(batch % plan.micro_batches == 0, "--plan ", o.plan, ": its ", plan.micro_batches,
          " micro-batches do not divide the global batch of ", batch);
    at_once = run.micro_batch = batch / plan.micro_batches;
  }
  for (const std::string& rule : o.split) {
    const std::string origin = text("--split ", rule);
    const auto equals = rule.rfind('=');
    check(equals != rule.npos && equals > 0, origin,
          ": expected LAYER=AXIS:PARTS,..., as in 'conv1*=height:2,batch:2'");
    naming(origin, [&] {
      plan.split(rule.substr(0, equals), parse_split(rule.substr(equals + 1)), origin);
    });
    append(run.name, text(&rule == &o.split[0] ? ", with " : " ", origin));
  }
  for (const std::string& layers : o.recompute) {
    check(!layers.empty(), "--recompute: expected the name of a layer, or a pattern");
    plan.recompute(layers, text("--recompute ", layers));
  }
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

void write_plan_out(const RunOptions& o, const RunPlan& plan, const World& world) {
  if (world.rank() != 0 || o.plan_out.empty()) return;
  for_flag("--plan-out", [&] { write_plan(o.plan_out, plan.plan); });
}

}  // namespace lamina::cli
