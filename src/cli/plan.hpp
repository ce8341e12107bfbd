// RunPlan: how the layers of a run are split and what is kept, as --plan, --split, --recompute and
// --shard-optimizer say.
#pragma once

#include "options.hpp"

#include <lamina/plan/plan.hpp>
#include <lamina/train/choose_plan.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

struct RunPlan {
  std::string name = {};  // "owt, with --split fc6=batch:2"
  std::vector<Decision> decisions = {};
  std::int64_t micro_batch = 0;  // see TrainerOptions: as --micro-batch says, or bought
  std::string fits = {};         // into what memory, with --micro-batch auto: for the preamble
  Plan plan = {};                // these, and what is known of it: what --plan-out writes
  bool shown = false;            // whether it is worth a table
  std::shared_ptr<const Cluster> measured = {};  // the world, where --plan auto has measured it
};

/// Whether --plan NAME is there for any network and any number of ranks.
bool built_in(const std::string& name);

/// The plan that --plan names, or has in a file that rank 0 reads, with the other flags on top, for
/// so many samples a step. With --micro-batch auto those run at once that fit into memory, unless
/// --plan auto finds how many. Collective.
RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world);
/// The same on so many of them, with the world as it was measured before, if it was.
RunPlan make_plan(const RunOptions& o, const Network& net, std::int64_t batch, const World& world,
                  int ranks, std::shared_ptr<const Cluster> measured = {});

/// The plan of --plan auto for so many samples a step, on the first `ranks` of the world: see
/// lamina::plan(). Measures the world unless that was done. Rank 0 says what it found. Collective
/// over the world.
ChosenPlan auto_plan(const RunOptions& o, const Network& net, std::int64_t batch,
                     const World& world, int ranks, std::shared_ptr<const Cluster>& measured);

/// The file of --plan-out, where there is one.
void write_plan_out(const RunOptions& o, const RunPlan& plan, const World& world);

}  // namespace lamina::cli
