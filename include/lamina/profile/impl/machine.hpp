// What is asked of measured ceilings.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/machine.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE int Machine::disturbed() const {
  const auto count = [](const auto& ceilings) {
    return int(
        std::count_if(ceilings.begin(), ceilings.end(), [](auto& c) { return c.disturbed; }));
  };
  return count(compute) + count(memory) + count(comm);
}

LAMINA_INLINE bool Machine::disturbed(DType t) const {
  const double best = peak(t);
  for (const ComputeCeiling& c : compute)
    if (c.kind == ComputeCeiling::Kind::fma && c.dtype == t && c.flops.together == best &&
        c.disturbed)
      return true;
  return bandwidth() > 0 && memory.back().disturbed;
}

LAMINA_INLINE double Machine::bus_bandwidth(Collective op, int group) const {
  double best = 0, any = 0;
  for (const CommCeiling& c : comm) {
    if (c.op != op) continue;
    any = std::max(any, c.bus_bandwidth());
    if (c.ranks == group) best = std::max(best, c.bus_bandwidth());
  }
  return best > 0 ? best : any;
}

}  // namespace lamina
