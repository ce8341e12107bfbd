// The median of a few measured values.
#pragma once

#include <algorithm>
#include <vector>

namespace lamina {

/// The value in the middle, or the mean of the two there; of at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace lamina
