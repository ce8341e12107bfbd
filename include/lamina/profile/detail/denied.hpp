// Denied: how long a rank was ready to run and had no processor.
#pragma once

#include <lamina/profile/usage.hpp>

#include <algorithm>

namespace lamina::detail {

/// Seconds of steps in which `used` was used, and in which the rank, one of `ranks`, did not wait
/// for `busy` seconds. Where the system does not say, what no thread of the process had of them is
/// a lower bound; but a thread that was never interrupted slept of its own accord. Among several
/// ranks that cannot be told: one that yields while it waits for others counts as interrupted.
inline double denied(const Usage& used, double busy, int ranks) {
  if (used.denied >= 0) return used.denied;
  return ranks == 1 && used.switches > 0 ? std::max(0.0, busy - used.processor) : 0;
}

}  // namespace lamina::detail
