// Machine: what this machine can do at most, as measured, never as a data sheet says.
#pragma once

#include <lamina/comm/volume.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backend.hpp>

#include <string>
#include <vector>

namespace lamina {

/// A rate of one rank with all of its threads: while the node's other ranks are idle, and while all
/// of them do the same (the slowest rank's). The second is what a training step can get.
struct Rate {
  double alone = 0, together = 0;
};

/// Ceilings are `disturbed` where no two measurements agreed, or where a rank lacked a processor
/// while all were at work: they may be too low, and are not kept in the cache.

/// FLOP per second.
struct ComputeCeiling {
  enum class Kind { fma, gemm, conv };
  Kind kind = Kind::fma;
  std::string name;  ///< instruction set ("avx512"), or the operation and its algorithm
  DType dtype = DType::f32;
  Rate flops;
  bool disturbed = false;
};

/// Bytes per second that kernels ask for: triad a = b + s * c as 3 operands (STREAM's count,
/// without the write-allocate), read = the sum of one, scale x = s * x in place as 2.
struct MemoryCeiling {
  std::string level;    ///< "L1", "L2", "L3", "memory"
  double capacity = 0;  ///< bytes, of all caches that the rank's threads use; 0 for memory
  Rate triad, read, scale;
  bool disturbed = false;

  /// The best of the three.
  double best(double Rate::*which) const {
    double rate = triad.*which;
    for (const Rate& r : {read, scale})
      if (r.*which > rate) rate = r.*which;
    return rate;
  }
  /// With all ranks at once.
  double bandwidth() const { return best(&Rate::together); }
};

/// One collective at one size.
struct CommCeiling {
  Collective op = Collective::all_reduce;  ///< halo = point-to-point, both ways at once
  int ranks = 2;                           ///< of the group
  int stride = 1;                          ///< between neighbouring ranks of the group
  double bytes = 0;                        ///< of the larger buffer
  double seconds = 0;
  bool disturbed = false;

  double algorithm_bandwidth() const { return seconds > 0 ? bytes / seconds : 0; }
  double bus_bandwidth() const { return algorithm_bandwidth() * bus_factor(op, ranks); }
};

struct Machine {
  std::string host;     ///< of rank 0
  std::string cpu;      ///< "AMD EPYC 9554, 2 processors"
  std::string backend;  ///< that gave GEMM and convolution
  int threads = 1;      ///< per rank
  int ranks = 1, nodes = 1;
  std::string date;   ///< of the measurement, "2026-11-21"
  double launch = 0;  ///< seconds of a kernel with next to nothing to do
  int missing = 0;    ///< ceilings that were disturbed, and so not kept in the cache

  std::vector<ComputeCeiling> compute;
  std::vector<MemoryCeiling> memory;  ///< from L1 to memory
  std::vector<CommCeiling> comm;      ///< empty for one rank

  /// Highest FLOP/s of register-only FMA in that type, all ranks at once; 0 if not measured.
  double peak(DType t) const {
    double best = 0;
    for (const ComputeCeiling& c : compute)
      if (c.kind == ComputeCeiling::Kind::fma && c.dtype == t && c.flops.together > best)
        best = c.flops.together;
    return best;
  }
  /// Bytes/s of memory, all ranks at once; 0 if not measured.
  double bandwidth() const {
    return memory.empty() || memory.back().capacity > 0 ? 0 : memory.back().bandwidth();
  }
  /// How many of the ceilings are disturbed.
  int disturbed() const;
  /// Whether peak(t) or bandwidth() is.
  bool disturbed(DType t) const;
  /// Highest bus bandwidth of `op` over `ranks` ranks (over any number if that was not measured).
  double bus_bandwidth(Collective op, int ranks) const;
};

/// Measures all ceilings, each in less than a few seconds. Collective. Uses the calling thread's
/// threads().
Machine measure_machine(const World& world, const Backend& backend);

/// The same from a cache in $LAMINA_CACHE, else $XDG_CACHE_HOME/lamina or ~/.cache/lamina, keyed by
/// host, processor, ranks per node, threads and back end; measures and fills it where it lacks
/// something, or where `again` is set. What is disturbed is measured a second time; of what was
/// measured now and what the cache has, the best counts that is plausible; and what is disturbed
/// still is returned, but not kept. A cache that cannot be read or written is ignored.
Machine cached_machine(const World& world, const Backend& backend, bool again = false);
/// The cached one, if there is any: measures nothing. `found` says whether there was. Collective.
Machine cached_machine(const World& world, const Backend& backend, bool* found);

/// Lines for a terminal.
std::string table(const Machine& machine);

}  // namespace lamina
