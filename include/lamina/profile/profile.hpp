// Profile: what every layer cost, pass by pass, as plain data.
#pragma once

#include <lamina/base/version.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/profile/counters.hpp>
#include <lamina/profile/machine.hpp>
#include <lamina/profile/planned_step.hpp>
#include <lamina/profile/profiler.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

/// One value per rank, in short.
struct Spread {
  double min = 0, mean = 0, max = 0;
  int slowest = 0;  ///< the rank that has `max`

  /// Of one value per rank, by rank; at least one.
  static Spread of(const std::vector<double>& by_rank);
  /// 1 = all ranks alike.
  double imbalance() const { return mean > 0 ? max / mean : 1; }
};

/// One kernel or collective of a row, on this rank, per step.
struct ProfileKernel {
  std::string what;
  Lane lane = Lane::compute;
  double calls = 0, seconds = 0, bytes = 0;
};

/// One pass of one layer. Seconds are per step: means over the measured steps on each rank.
struct ProfileRow {
  int layer = -1;  ///< the step's index in the network; -1 for work outside of layers
  std::string name, type, describe, split, algorithm;
  Pass pass = Pass::forward;
  std::string fused_into = {};  ///< of forward: the layer whose kernel did it, and has its time
  Shape output;                 ///< of the layer, whole, across all ranks
  double workspace = 0;         ///< bytes, of the layer and of the shared scratch that it uses
  Work work;                    ///< mean over the ranks, as of times; compulsory bytes
  Spread time;                  ///< in kernels
  Spread comm;                  ///< in collectives, on the communication thread
  Spread exposed;         ///< on the compute thread: handing collectives over, waiting, waking up
  Spread late;            ///< of `exposed`: while a rank that was needed had not come
  Spread transfer;        ///< of `exposed`: while all had come, and bytes moved
  double comm_bytes = 0;  ///< payload of the collectives, on the rank that has the most
  double wire_bytes = 0;  ///< that its link carries for them, in one direction
  Spread alone;           ///< `time` in steps without any communication; all 0 if not measured
  double predicted = 0;   ///< s, of kernels and waiting, by a plan; 0 = there is none
  std::optional<Counts> counts = {};  ///< of this rank's processor, per step, where it can count
  double step_min = 0, step_median = 0, step_std = 0;  ///< of `time` over this rank's steps
  double step_total_std = -1;  ///< likewise of kernels and waiting; negative = not known
  std::vector<ProfileKernel> kernels = {};

  /// What the row adds to the step: kernels and waiting.
  double seconds() const { return time.mean + exposed.mean; }
  double flops_per_second() const { return time.mean > 0 ? work.flops / time.mean : 0; }
  double bytes_per_second() const { return time.mean > 0 ? work.bytes / time.mean : 0; }
};

/// What a layer brings, on this rank; the states are those that were attached to its parameters.
struct LayerMemory {
  std::string name, type;
  Memory memory;
};

/// A span of the last measured step, in seconds since that step began.
struct TimelineSpan {
  int layer = -1;  ///< the step's index in the network; -1 for work outside of layers
  Pass pass = Pass::forward;
  Lane lane = Lane::compute;
  std::string what;
  double begin = 0, end = 0, bytes = 0;
};

/// What ranks had of the processors in a recorded step.
struct ProcessorUse {
  Spread time;        ///< seconds of processors, all threads of a rank together
  Spread denied;      ///< seconds that the step's own thread was ready to run and had no processor
  Spread switches;    ///< times that a thread of the rank lost its processor unwillingly
  double stolen = 0;  ///< part of a machine's processors that its host gave to others, at most
};

/// Standard deviations over this rank's steps, in seconds; negative = not known.
struct StepSpread {
  double kernels = -1, waiting = -1;  ///< of all rows together
  double unaccounted = -1;            ///< of what lies in no row
  double end_to_end = -1, clean = -1;
};

/// How a training went on with other ranks, or with workers shared out otherwise.
struct RanksChange {
  std::int64_t step = 0;                      ///< steps done before
  int from = 0, to = 0;                       ///< ranks
  std::string why = {};                       ///< who asked for it
  double pause = 0, prepared = 0, bytes = 0;  ///< see Resize
  std::vector<int> workers = {};              ///< of each rank, from then on
};

/// Of a training whose ranks changed.
struct RanksOverTime {
  std::int64_t steps = 0;  ///< that were done in all
  std::vector<RanksChange> changes = {};
};

/// All ranks have the same one, apart from `kernels`, `counts`, the spread over steps and the
/// memory, which are each rank's own, and the timeline, which rank 0 has.
struct Profile {
  std::string version = lamina::version;
  std::string model;  ///< for the caller to fill in
  std::string backend, dtype, optimizer;
  DType arithmetic = DType::f32;   ///< in which its kernels multiply
  std::string command;             ///< the command line; for the caller to fill in
  std::vector<std::string> hosts;  ///< of each rank, with its threads: "node1, 4 threads"
  int ranks = 1, steps = 0;
  std::int64_t batch = 0;  ///< global

  std::vector<ProfileRow> rows;  ///< in the network's order; only passes that ran
  Spread compute;                ///< in kernels, per rank: who is the slowest
  Spread sum_layers;             ///< kernels and waiting of all rows
  Spread end_to_end;             ///< wall time of a step
  Spread clean;         ///< the same of steps that were not recorded; all 0 if there were none
  double overhead = 0;  ///< of recording: median of recorded / clean - 1 over pairs of steps
  ProcessorUse processor;
  double clock_error = 0;  ///< s: what clocks of different hosts may be apart, where `late` is told
  StepSpread step_spread = {};

  RanksOverTime over_time = {};           ///< before and after these steps; for the caller
  std::optional<PlannedStep> plan = {};   ///< what was predicted of this step: see add_predicted()
  std::optional<Machine> machine = {};    ///< the ceilings; for the caller to fill in
  Memory memory;                          ///< of all layers together
  std::vector<LayerMemory> layer_memory;  ///< in the network's order
  std::vector<std::string> layers;        ///< names by index, for the timeline
  std::vector<std::vector<TimelineSpan>> timeline;  ///< of the last step, by rank

  /// Whether a rank lacked a processor for so long that times are not the program's own.
  bool disturbed() const {
    return processor.denied.max > 0.05 * end_to_end.mean || processor.stolen > 0.05;
  }
  /// The part of the step that lies in no row, in [0, 1].
  double unaccounted() const {
    return end_to_end.mean > 0 ? 1 - sum_layers.mean / end_to_end.mean : 0;
  }
};

/// The rows that stand for work outside of layers.
inline constexpr const char* outside_layers = "(trainer)";

/// What `profiler` measured while `network` ran on these ranks. `rule` counts the update's work.
/// Collective: every rank calls it. Throws Error if nothing was measured.
Profile make_profile(const PlacedNetwork& network, const Profiler& profiler, const UpdateRule& rule,
                     const Communicator& ranks);

/// Fills in ProfileRow::alone from steps that were recorded without communication. Collective.
void add_alone(Profile& profile, const PlacedNetwork& network, const Profiler& alone,
               const Communicator& ranks);

}  // namespace lamina
