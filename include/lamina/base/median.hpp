// The middle and the spread of a few measured values.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace lamina {

/// The value in the middle, or the mean of the two there; of at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// Standard deviation of what `values` are drawn from, by n - 1; negative with fewer than two, as
/// one value has no spread.
inline double deviation(const std::vector<double>& values) {
  const auto n = double(values.size());
  if (n < 2) return -1;
  double mean = 0, square = 0;
  for (const double v : values) mean += v / n;
  for (const double v : values) square += (v - mean) * (v - mean);
  return std::sqrt(square / (n - 1));
}

}  // namespace lamina
