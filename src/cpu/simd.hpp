// What the back end's own loops share: LAMINA_SIMD, and the division of long loops among OpenMP
// threads. The parallel regions are kept outside of LAMINA_SIMD functions: what OpenMP outlines
// would not inherit the instruction set.
#pragma once

#include "target_clones.hpp"

#include <algorithm>
#include <cstddef>

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
