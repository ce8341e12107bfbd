// Division by a number that is known when a kernel is started: a product and a shift, where a GPU
// would take many times as long to divide.
#pragma once

#include "launch.hpp"

#include <bit>
#include <cstdint>

namespace lamina::cuda {

/// By a number from 1 to 2^31 - 1, of numbers less than 2^31.
class Divisor {
 public:
  /// With l = log2 of d, rounded up, and f = 2^(31+l) / d, rounded up: f d exceeds 2^(31+l) by less
  /// than d <= 2^l, so that n f / 2^(31+l) exceeds n / d by less than 1 / d.
  explicit Divisor(std::int64_t d)
      : by_(std::uint32_t(d)), shift_(31 + std::bit_width(std::uint32_t(d - 1))) {
    factor_ = std::uint32_t(((std::uint64_t(1) << shift_) + std::uint64_t(d) - 1) / by_);
  }

  constexpr int by() const { return int(by_); }
  __device__ int quotient(int n) const { return int(std::uint64_t(n) * factor_ >> shift_); }

 private:
  std::uint32_t by_, factor_;
  int shift_;
};

}  // namespace lamina::cuda
