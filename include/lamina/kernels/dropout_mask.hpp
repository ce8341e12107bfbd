// Which elements dropout keeps. Every back end asks here, so that the masks are the same on all.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/kernels/step_values.hpp>

namespace lamina {

class DropoutMask {
 public:
  /// Of a layer in a step, for a tensor of `whole` elements per micro-batch, across all ranks.
  constexpr DropoutMask(double rate, const StepValues& now, std::int32_t layer, std::int64_t whole)
      : random_(key(now, layer)),
        least_(least(rate)),
        skip_(std::uint64_t(now.micro_batch * whole)) {}

  /// Whether the element stays; `index` counts the elements of the whole tensor in n-c-h-w order.
  constexpr bool keeps(std::uint64_t index) const { return keeps_at(random_.bits(skip_ + index)); }

  /// Calls f(i, whether element `first` + i stays) for i from 0 to n - 1: the quick way to many.
  template <class F>
  constexpr void each(std::uint64_t first, std::int64_t n, F&& f) const {
    const std::uint64_t word = skip_ + first;
    std::uint64_t k = word % 4;
    for (std::int64_t i = 0; i < n; k = 0) {
      const Random::Block block = random_.block((word + std::uint64_t(i)) / 4);
      for (; k < 4 && i < n; ++k, ++i) f(i, keeps_at(block[k]));
    }
  }

 private:
  /// Whether the uniform number of a word is at least the rate.
  constexpr bool keeps_at(std::uint32_t word) const { return Random::steps(word) >= least_; }

  /// The first step of uniform numbers that is not below the rate.
  static constexpr std::uint32_t least(double rate) {
    const double steps = rate * 0x1p24;  // exact
    const auto below = std::uint32_t(steps);
    return below + (below < steps ? 1 : 0);
  }

  static constexpr std::uint64_t key(const StepValues& now, std::int32_t layer) {
    const Random random(now.seed, std::uint64_t(now.step), std::uint64_t(layer));
    return std::uint64_t(random.bits(0)) << 32 | random.bits(1);
  }

  Random random_;
  std::uint32_t least_;
  std::uint64_t skip_;
};

}  // namespace lamina
