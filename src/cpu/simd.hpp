// What the back end's own loops share: one function compiled for several instruction sets, and
// the division of long loops among OpenMP threads.
#pragma once

#include <algorithm>
#include <cstddef>

/// Compiles a function three times, for AVX-512, AVX2 and any x86-64, and picks one when the
/// program starts, so that one binary runs everywhere. The parallel regions are kept outside of
/// such functions: what OpenMP outlines would not inherit the instruction set. Sanitizers run
/// before the choice can be made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LAMINA_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LAMINA_SIMD
#endif

namespace lamina::detail {

/// Elements below which waking the other threads costs more than it saves.
inline constexpr std::size_t parallel_elements = 32768;

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
