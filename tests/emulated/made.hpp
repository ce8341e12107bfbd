// Operands of emulated kernels.
#pragma once

#include "catch.hpp"
#include "kernels/launch.hpp"
#include "support/operands.hpp"

namespace lamina::test {

/// Random ones around `centre`, as elements of T have them.
template <class T>
Values random_of(std::size_t count, std::uint64_t seed, double centre = 0) {
  Values values = random_values(std::int64_t(count), seed);
  for (double& v : values) v += centre;
  return rounded(values, dtype_of<T>);
}

template <class T>
std::vector<T> as(const Values& from) {
  std::vector<T> to;
  for (const double v : from) to.push_back(T(v));
  return to;
}
template <class T>
Values wide(const std::vector<T>& from) {
  return {from.begin(), from.end()};
}

/// difference(), but NaN does not differ from NaN.
inline double difference_or_nan(Values got, Values want) {
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    if (std::isnan(got[i]) && std::isnan(want[i])) got[i] = want[i] = 0;
  return difference(got, want);
}

inline void ok(cudaError_t status) { REQUIRE(status == cudaSuccess); }

}  // namespace lamina::test
