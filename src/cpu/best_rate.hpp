// How a rate is measured on a machine that others use too.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/kernels/ceilings.hpp>

#include <algorithm>

namespace lamina::detail {

/// The most repetitions per second: `work(times)` does that many and returns the seconds that they
/// took, `fill(times)` does as many for itself, to find out how many fill a slice.
template <class Fill, class Work>
double best_rate(const Slices& slices, const Fill& fill, const Work& work) {
  const double start = now(), margin = slices.seconds / 6;
  const double first = start + margin, last = start + slices.seconds - margin;
  std::size_t times = 1;
  for (double begin = start, end = 0;; begin = end, times *= 2) {
    fill(times);
    end = now();
    if (end - begin > slices.slice / 2 || end > last) break;
  }
  for (double best = 0;;) {
    const double begin = now();
    const double seconds = work(times);
    const double end = now();
    // Where a slice takes longer than all of the time, the first one has to do.
    if ((begin >= first && end <= last) || (best == 0 && end > last))
      best = std::max(best, double(times) / seconds);
    if (end > last) return best;
  }
}

}  // namespace lamina::detail
