// calibrate: measures the machine that this program runs on, and a network's layers there, so that
// plans for it are predicted from what kernels and collectives really take.
#pragma once

#include <lamina/comm/world.hpp>
#include <lamina/plan/find_plan.hpp>
#include <lamina/plan/measured_times.hpp>

#include <memory>
#include <vector>

namespace lamina {

/// The ranks of this job as a cluster, a device each: a rank's share of what memory is free
/// (memory_per_rank), and rates that all ranks get at once, from cached_machine(); links that are
/// fitted to messages of few and of many bytes; collectives as they were measured, between ranks
/// and neighbours of powers of two; contention, by convolutions beside an all-reduce and without.
/// Collective, the same on all ranks: the slowest one counts. Takes about a minute where the
/// machine's cache has nothing. Throws Error where nodes have unlike numbers of ranks.
Cluster measure_cluster(const World& world, const Backend& backend);

/// Measures the kernels of a network that is placed under `splits`, one of each vertex, on the
/// ranks of the world, and adds those of layers that `times` does not know. It is placed as
/// `options` say, but without fusion, recomputation, micro-batches and a sharded optimizer, and
/// with made-up samples. Steps run on all ranks at once, without communication; of those in which
/// no rank lacked its processor the median counts, and of the ranks, the one that took longest.
/// Where layers of one step are alike, their mean counts.
///
/// Returns how many layers, unlike each other, it measured for the first time. Where there are
/// none, nothing runs. Collective. Throws Error where the network cannot be placed so, or does not
/// end in a loss.
int measure_layers(MeasuredTimes& times, const Network& network, const PlaceOptions& options,
                   const std::vector<Split>& splits, const World& world);
/// From now on updates are those of so many parameters: measured, as one array, where `times` does
/// not know them. Collective.
void measure_update(MeasuredTimes& times, const UpdateRule& rule, std::int64_t parameters,
                    const PlaceOptions& options, const World& world);

/// Reads what the cache has for this machine, job and back end: see cached_machine(). Where the
/// file is damaged, rank 0 says so in a line on stderr, and nothing is read. Collective.
void load_measured(MeasuredTimes& times, const World& world, const Backend& backend);
/// Writes it, with what another program may have added meanwhile; from rank 0. Where it cannot be
/// written, nothing is kept.
void keep_measured(const MeasuredTimes& times, const World& world, const Backend& backend);

struct CalibrateOptions {
  double seconds = 60;  ///< no plan's layers are measured any more after that
  int most_plans = 6;  ///< that a search finds best, one after the other, until it knows its layers
  PlannerOptions planner = {};  ///< of the searches
};

struct Calibration {
  Cluster cluster = {};
  std::shared_ptr<MeasuredTimes> times = {};
  int measured = 0;      ///< layers, unlike each other, that the cache did not have
  bool settled = false;  ///< whether all layers of the best plan were measured
};

/// Measures the cluster, and layers as the built-in plans have them; then searches a plan for the
/// ranks of this job, measures what it uses that was not measured, and searches again, until it
/// uses nothing new. `options` say how the network is placed, as for find_plan(); they need a back
/// end. Collective, the same on all ranks. Throws Error as find_plan() does.
Calibration calibrate(const Network& network, const PlaceOptions& options, const UpdateRule& rule,
                      const World& world, const CalibrateOptions& how = {});
/// The same with a cluster that is known.
Calibration calibrate(const Network& network, const PlaceOptions& options, const UpdateRule& rule,
                      const World& world, Cluster cluster, const CalibrateOptions& how = {});

}  // namespace lamina
