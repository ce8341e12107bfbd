// Profile: what every layer cost, pass by pass, as plain data.
#pragma once

#include <lamina/base/version.hpp>
#include <lamina/network/network.hpp>
#include <lamina/profile/profiler.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace lamina {

/// One value per rank, in short.
struct Spread {
  double min = 0, mean = 0, max = 0;
  int slowest = 0;  ///< the rank that has `max`

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
  double workspace = 0;   ///< bytes, of the layer and of the shared scratch that it uses
  Work work;              ///< of the rank with the largest part; compulsory bytes
  Spread time;            ///< in kernels
  Spread comm;            ///< in collectives, on the communication thread
  Spread exposed;         ///< of that, what the compute thread waited for
  double comm_bytes = 0;  ///< payload of this rank's collectives
  double step_min = 0, step_median = 0, step_std = 0;  ///< of `time` over this rank's steps
  std::vector<ProfileKernel> kernels = {};

  /// What the row adds to the step: kernels and waiting.
  double seconds() const { return time.mean + exposed.mean; }
  double flops_per_second() const { return time.mean > 0 ? work.flops / time.mean : 0; }
  double bytes_per_second() const { return time.mean > 0 ? work.bytes / time.mean : 0; }
};

/// All ranks have the same one, apart from `kernels`, `comm_bytes` and the spread over steps, which
/// are each rank's own.
struct Profile {
  std::string version = lamina::version;
  std::string model;  ///< for the caller to fill in
  std::string backend, dtype, optimizer;
  int ranks = 1, steps = 0;
  std::int64_t batch = 0;  ///< global

  std::vector<ProfileRow> rows;  ///< in the network's order; only passes that ran
  Spread compute;                ///< in kernels, per rank: who is the slowest
  Spread sum_layers;             ///< kernels and waiting of all rows
  Spread end_to_end;             ///< wall time of a step

  /// The part of the step that lies in no row, in [0, 1].
  double unaccounted() const {
    return end_to_end.mean > 0 ? 1 - sum_layers.mean / end_to_end.mean : 0;
  }
};

/// The rows that stand for work outside of layers.
inline constexpr const char* outside_layers = "(trainer)";

/// What `profiler` measured while `network` ran on these ranks. `rule` counts the update's work.
/// Collective: every rank calls it. Throws Error if nothing was measured.
Profile make_profile(const Network& network, const Profiler& profiler, const UpdateRule& rule,
                     const Communicator& ranks);

}  // namespace lamina
