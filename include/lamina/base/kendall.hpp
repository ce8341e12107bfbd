// How far two orders agree.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace lamina {

/// Kendall's τ-b of as many values each: 1 where both rise and fall together, -1 where one rises
/// as the other falls; 0 where all values of one are equal. Source: Kendall, "The treatment of ties
/// in ranking problems", 1945.
inline double kendall(const std::vector<double>& a, const std::vector<double>& b) {
  const auto sign = [](double v) { return double(v > 0) - double(v < 0); };
  double agree = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const double x = sign(a[i] - a[j]), y = sign(b[i] - b[j]);
      agree += x * y, of_a += x * x, of_b += y * y;
    }
  return of_a > 0 && of_b > 0 ? agree / std::sqrt(of_a * of_b) : 0;
}

}  // namespace lamina
