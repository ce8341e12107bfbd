// Volume: what a collective moves, in one place for the profiler, the benchmark and the planner.
#pragma once

#include <lamina/comm/collective.hpp>

namespace lamina {

/// Bytes that each rank's link carries in one direction, over the bytes of the larger buffer
/// (Operation::bytes), for n ranks: the factor from algorithm to bus bandwidth of nccl-tests
/// (doc/PERFORMANCE.md there). A halo goes to one neighbour as it is.
constexpr double bus_factor(Collective op, int n) {
  if (n < 2) return 0;
  switch (op) {
    case Collective::all_reduce:
      return 2.0 * (n - 1) / n;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
      return double(n - 1) / n;
    case Collective::broadcast:
    case Collective::halo:
      return 1;
    case Collective::barrier:
      break;
  }
  return 0;
}

}  // namespace lamina
