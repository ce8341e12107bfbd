// Which ranks share a memory is told by its identity and the name of the host.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/comm/memory_per_rank.hpp>

namespace lamina {

LAMINA_INLINE double memory_per_rank(const World& world, const MemorySpace& memory, double bytes) {
  const std::vector<std::string> theirs = world.comm().all_gather_text(memory.identity());
  const auto rank = std::size_t(world.rank());
  int sharers = 0;
  for (std::size_t r = 0; r < theirs.size(); ++r)
    sharers += theirs[r] == theirs[rank] && world.hosts()[r] == world.hosts()[rank];
  const double mine = (bytes > 0 ? bytes : double(memory.free_bytes())) / sharers;
  return world.comm().all_reduce_value(mine, ReduceOp::min);
}

}  // namespace lamina
