// The loops of batch normalisation, over sixteen elements at a time.
#pragma once

#include "cpu/simd.hpp"

#include <lamina/kernels/instruction_set.hpp>

namespace lamina::detail {

/// So many elements are taken at a time.
inline constexpr int lanes = 16;

/// Of so many elements, a bit each: whether an activation let it pass as it was.
using Signs = std::uint16_t;
static_assert(8 * sizeof(Signs) == lanes);

/// So many channels at most are taken at a time: their sums in f32 are a part of the first cache.
inline constexpr std::int64_t most_channels = 1024;

/// Of how many elements: element i belongs to channel i % period. The period is sixteen, which are
/// all channels then, or a multiple of it that `n` is a multiple of; taken are the first `channels`
/// of each period, a multiple of sixteen.
struct Stretch {
  std::size_t n, period, channels;
};

/// `mean`, `a`, `b` and `c` have a value for each channel, and `out` gets the first sums of all
/// channels, then the second ones. What is null is absent; a slope is that of an activation below
/// zero.
template <Stored T>
struct NormLoops {
  /// sum(x) and sum(x^2).
  void (*moments)(const T* x, Stretch, double* out);
  /// sum(dy) and sum(dy * (x - mean)), dy behind an activation where there are signs; what it is
  /// before that goes to `kept`.
  void (*gradient_moments)(const T* x, const Signs* signs, const T* dy, float slope,
                           const float* mean, Stretch, T* kept, double* out);
  /// y = (x - mean) * a + b, plus `added`, behind an activation unless its slope is 1, whose signs
  /// are kept; past the caches if wanted.
  void (*scale)(const T* x, const float* mean, const float* a, const float* b, const T* added,
                float slope, T* y, Signs* signs, Stretch, bool past);
  /// dx = a * dy + b * (x - mean) + c, dy behind an activation where there are signs.
  void (*combine)(const T* x, const Signs* signs, const T* dy, float slope, const float* mean,
                  const float* a, const float* b, const float* c, T* dx, Stretch, bool past);
};

/// Those for a processor that has at least this instruction set.
template <Stored T>
const NormLoops<T>& norm_loops(InstructionSet);

}  // namespace lamina::detail
