// memory_per_rank: what each rank may take where several share a memory.
#pragma once

#include <lamina/comm/world.hpp>
#include <lamina/tensor/memory_space.hpp>

namespace lamina {

/// Bytes that there are for each rank: what is free now in `memory`, or `bytes` if above 0, shared
/// alike by the ranks that have it, those of one host or of one GPU; of all ranks the least.
/// Collective, the same on all ranks.
double memory_per_rank(const World& world, const MemorySpace& memory, double bytes = 0);

}  // namespace lamina
