// How a rate is measured on a machine that others use too.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/kernels/ceilings.hpp>

#include <algorithm>
#include <vector>

namespace lamina::detail {

/// Repetitions per second: `work(times)` does that many and returns the seconds that they took,
/// `fill(times)` does as many for itself, to find out how many fill a slice.
template <class Fill, class Work>
double rate_in(const Slices& slices, const Fill& fill, const Work& work) {
  const double start = now(), margin = slices.seconds / 6;
  const double first = start + margin, last = start + slices.seconds - margin;
  std::size_t times = 1;
  for (double begin = start, end = 0;; begin = end, times *= 2) {
    fill(times);
    end = now();
    if (end - begin > slices.slice / 2 || end > last) break;
  }
  std::vector<double> rates;
  for (double end = 0; end <= last;) {
    const double begin = now();
    const double seconds = work(times);
    end = now();
    // Where a slice takes longer than all of the time, the first one has to do.
    if ((begin >= first && end <= last) || (rates.empty() && end > last))
      rates.push_back(double(times) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  return slices.middle ? rates[rates.size() / 2] : rates.back();
}

}  // namespace lamina::detail
