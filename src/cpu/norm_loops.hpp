// The loops of batch normalisation, over sixteen elements at a time.
#pragma once

#include "cpu/simd.hpp"

#include <lamina/kernels/instruction_set.hpp>

namespace lamina::detail {

/// Sums and coefficients have this many lanes: element i belongs to lane i % lanes.
inline constexpr int lanes = 16;

/// Over `n` elements that lie one behind the other. Sums are by lanes, the first one behind the
/// second; `mean`, `a`, `b` and `c` have a value for each lane.
template <Stored T>
struct NormLoops {
  /// sum(x) and sum(x^2).
  void (*moments)(const T* x, std::size_t n, double* out);
  /// sum(dy) and sum(dy * (x - mean)), where there is a y behind an activation with that slope;
  /// what dy is before it goes to `kept`, unless that is null.
  void (*gradient_moments)(const T* x, const T* y, const T* dy, float slope, const float* mean,
                           std::size_t n, T* kept, double* out);
  /// y = (x - mean) * a + b, plus `added` unless that is null, behind an activation unless its
  /// slope is 1; past the caches if wanted.
  void (*scale)(const T* x, const float* mean, const float* a, const float* b, const T* added,
                float slope, T* y, std::size_t n, bool past);
  /// dx = a * dy + b * (x - mean) + c, where there is a y behind an activation with that slope.
  void (*combine)(const T* x, const T* y, const T* dy, float slope, const float* mean,
                  const float* a, const float* b, const float* c, T* dx, std::size_t n, bool past);
};

/// Those for a processor that has at least this instruction set.
template <Stored T>
const NormLoops<T>& norm_loops(InstructionSet);

}  // namespace lamina::detail
