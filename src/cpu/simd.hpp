// What the back end's own loops share: LAMINA_SIMD, stores past the caches, and the division of
// long loops among OpenMP threads. The parallel regions are kept outside of LAMINA_SIMD functions:
// what OpenMP outlines would not inherit the instruction set.
#pragma once

#include "base/target_clones.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace lamina::detail {

/// Elements below which waking the other threads costs more than it saves.
inline constexpr std::size_t parallel_elements = 32768;

/// Whether to write a result past the caches, given the bytes that a kernel reads and writes: an
/// ordinary store reads the line first, which only pays where the next kernel still finds it there.
inline bool past_caches(std::size_t operands, const void* to) {
  constexpr std::size_t cached = 32u << 20;
  return operands > cached && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
}

/// Stores sixteen values.
inline void put16(const float* values, float* to, bool past) {
#if defined(__SSE__)
  if (past) {
    for (int l = 0; l < 16; l += 4) _mm_stream_ps(to + l, _mm_loadu_ps(values + l));
    return;
  }
#endif
  std::memcpy(to, values, 16 * sizeof(float));
}

/// To be called by a thread that has stored past the caches before others read.
inline void finish_puts() {
#if defined(__SSE__)
  _mm_sfence();
#endif
}

/// Calls work(begin, end) for pieces of [0, n), on all threads. The pieces do not depend on the
/// number of threads.
template <class Work>
void in_pieces(std::size_t n, const Work& work) {
  constexpr std::size_t piece = 8192;
  const std::ptrdiff_t pieces = std::ptrdiff_t((n + piece - 1) / piece);
#pragma omp parallel for schedule(static) if (n > parallel_elements)
  for (std::ptrdiff_t i = 0; i < pieces; ++i) {
    const std::size_t begin = std::size_t(i) * piece;
    work(begin, std::min(begin + piece, n));
  }
}

}  // namespace lamina::detail
