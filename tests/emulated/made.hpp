// Operands of emulated kernels, and how far results are from those of the reference.
#pragma once

#include "catch.hpp"
#include "kernels/launch.hpp"

#include <lamina/base/random.hpp>
#include <lamina/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lamina::test {

/// From centre - 1 to centre + 1, as elements of T have them.
template <class T>
std::vector<double> numbers(std::size_t count, std::uint64_t stream, double centre = 0) {
  const Random random(7, stream);
  std::vector<double> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = double(T(centre + 2 * random.uniform(i) - 1));
  return all;
}

template <class T>
std::vector<T> as(const std::vector<double>& from) {
  std::vector<T> to;
  for (const double v : from) to.push_back(T(v));
  return to;
}
template <class T>
std::vector<double> wide(const std::vector<T>& from) {
  return {from.begin(), from.end()};
}

inline Tensor f64_tensor(const std::vector<double>& values, const Shape& shape) {
  Tensor t({shape, DType::f64, {}});
  std::copy(values.begin(), values.end(), t.as<double>());
  return t;
}
inline std::vector<double> values(const Tensor& t) {
  return {t.as<double>(), t.as<double>() + t.shape().size()};
}

/// The largest difference, as part of the largest number, or of `largest` if that is more. What is
/// the same, infinities among them, does not differ; NaN does.
inline double difference(const std::vector<double>& got, const std::vector<double>& right,
                         double largest = 1e-300) {
  REQUIRE(got.size() == right.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == right[i]) continue;
    const double d = std::abs(got[i] - right[i]);
    most = d <= most ? most : d;
  }
  for (const double r : right)
    if (std::isfinite(r)) largest = std::max(largest, std::abs(r));
  return most / largest;
}

inline void ok(cudaError_t status) { REQUIRE(status == cudaSuccess); }

}  // namespace lamina::test
