// Which elements dropout keeps. Every back end asks here, so that the masks are the same on all.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/kernels/step_values.hpp>

namespace lamina {

class DropoutMask {
 public:
  /// Of a layer in a step, for a tensor of `whole` elements per micro-batch, across all ranks.
  constexpr DropoutMask(double rate, const StepValues& now, std::int32_t layer, std::int64_t whole)
      : random_(key(now, layer)), rate_(rate), skip_(std::uint64_t(now.micro_batch * whole)) {}

  /// Whether the element stays; `index` counts the elements of the whole tensor in n-c-h-w order.
  constexpr bool keeps(std::uint64_t index) const {
    return random_.uniform(skip_ + index) >= rate_;
  }

 private:
  static constexpr std::uint64_t key(const StepValues& now, std::int32_t layer) {
    const Random random(now.seed, std::uint64_t(now.step), std::uint64_t(layer));
    return std::uint64_t(random.bits(0)) << 32 | random.bits(1);
  }

  Random random_;
  double rate_;
  std::uint64_t skip_;
};

}  // namespace lamina
