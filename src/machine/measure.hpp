// The parts of measure_machine(). All are collective, and give all ranks the same.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/kernels/ceilings.hpp>
#include <lamina/profile/machine.hpp>

#include <vector>

namespace lamina::detail {

/// How long to measure, in seconds.
struct Effort {
  double loop = 0.06;                   ///< per loop, or size of a kernel
  double transfer = 0.02;               ///< per collective and size
  double max_bytes = 16 * 1024 * 1024;  ///< of collectives
  double slow = 0.1;                    ///< of a collective, after which no larger one is timed
  double memory = 1e18;  ///< bytes that a node may take to measure its memory, at most
  double patience = 10;  ///< after which nothing is repeated in the hope of a quieter machine
  double begin = now();  ///< from when on patience is counted, by rank 0's clock
};

/// Whether rank 0 has some patience left. Collective.
bool patient(const World& world, const Effort& effort);

/// Bytes that `units` (the threads of a node, or the multiprocessors of a GPU) go through to
/// measure its memory: so many that no cache holds a part worth mentioning, neither those that the
/// system tells of (`told` bytes in the last level, all together) nor those of a host that tells
/// its virtual machines of fewer. No processor has more than 100 MB of the last level beside a
/// core, or 1.2 GB in all. At most a quarter of what is `available`.
double memory_set(double told, int units, double available);

std::vector<ComputeCeiling> measure_fma(const World& world, const CeilingLoops& loops,
                                        const Effort& effort = {});
/// The best GEMM of each dtype, and the best convolution of each kernel size and algorithm.
std::vector<ComputeCeiling> measure_kernels(const World& world, const Backend& backend,
                                            const Effort& effort = {});
/// Of which so many bytes are free on this rank.
std::vector<MemoryCeiling> measure_memory(const World& world, const CeilingLoops& loops,
                                          std::size_t free, const Effort& effort = {});
double measure_launch(const World& world, const Backend& backend, const Effort& effort = {});
/// On what lies in `memory`, from 1 KiB by factors of 4; groups of 2, 4, ... and of all ranks, side
/// by side; pairs of neighbours and, with 4 or more ranks, of the ranks that are half of all apart.
/// Where a network is slow, what is too large to tell more is left out.
std::vector<CommCeiling> measure_collectives(const World& world, MemorySpace& memory,
                                             const Effort& effort = {});

/// "AMD EPYC 9554, 2 processors".
std::string processor_name();

}  // namespace lamina::detail
