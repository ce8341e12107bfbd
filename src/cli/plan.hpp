// RunPlan: how the layers of a run are split and what is kept, as --plan, --split, --recompute and
// --shard-optimizer say.
#pragma once

#include "options.hpp"

#include <lamina/plan/plan.hpp>

#include <string>
#include <vector>

namespace lamina::cli {

struct RunPlan {
  std::string name;  // "owt, with --split fc6=batch:2"
  std::vector<Decision> decisions;
  bool shard_optimizer = false;
  bool shown = false;  // whether it is worth a table
};

/// The plan that --plan names, or has in a file that rank 0 reads, with the other flags on top.
/// Collective.
RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world);

/// The plan of --plan auto for so many samples at once: measures the machine and the layers,
/// searches plans, times the best of them, and says on rank 0 what it found. Collective.
Plan auto_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world);

/// The file of --plan-out, where there is one.
void write_plan_out(const RunOptions& o, const RunPlan& plan, const World& world);

}  // namespace lamina::cli
