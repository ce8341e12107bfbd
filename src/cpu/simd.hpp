// What the back end's own loops share: LAMINA_SIMD, stores past the caches, and the division of
// long loops among OpenMP threads. The parallel regions are kept outside of LAMINA_SIMD functions:
// what OpenMP outlines would not inherit the instruction set.
#pragma once

#include "base/target_clones.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/tensor/narrow.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lamina::detail {

/// What these kernels store elements in. They compute in f32 at least.
template <class T>
concept Stored = std::same_as<T, float> || std::same_as<T, BF16>;

inline float widened(float v) { return v; }
/// In steps that a compiler makes vectors of, as those of Narrow's own conversions are not.
inline float widened(BF16 v) { return std::bit_cast<float>(std::uint32_t(v.bits) << 16); }

inline void put(float v, float& to) { to = v; }
/// Rounds as BF16 does: to nearest, ties to even; NaN stays NaN.
inline void put(float v, BF16& to) {
  const auto u = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t near = (u + 0x7FFFU + (u >> 16 & 1U)) >> 16, quiet = u >> 16 | 0x40U;
  to.bits = std::uint16_t((u & 0x7FFFFFFFU) > 0x7F800000U ? quiet : near);
}

/// Elements below which waking the other threads costs more than it saves.
inline constexpr std::size_t parallel_elements = 32768;

/// Whether to write a result past the caches, given the bytes that a kernel reads and writes: an
/// ordinary store reads the line first, which only pays where the next kernel still finds it there.
inline bool past_caches(std::size_t operands, const void* to) {
  constexpr std::size_t cached = 32u << 20;
  return operands > cached && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
}

/// Copies so many bytes, a multiple of 16, past the caches; both places are aligned to 16.
template <std::size_t bytes>
__attribute__((always_inline)) inline void put_past(const void* from, void* to) {
#if defined(__SSE2__)
  for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, static_cast<const __m128i*>(from)[i]);
#else
  std::memcpy(to, from, bytes);
#endif
}

/// To be called by a thread that has stored past the caches before others read.
inline void finish_puts() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// Asks for what a loop that reads on from here comes to so many bytes further. Processors that
/// guess it themselves stop short at times: with two cores of Sapphire Rapids loops of batch norm
/// came to 17 to 28 GB/s alone, and come to 26 to 43.
__attribute__((always_inline)) inline void fetch_ahead(const void* from, std::size_t bytes) {
  __builtin_prefetch(static_cast<const char*>(from) + bytes);
}

/// Calls work(begin, end) for pieces of [0, n), on all threads. The pieces do not depend on the
/// number of threads.
template <class Work>
void in_pieces(std::size_t n, const Work& work) {
  constexpr std::size_t piece = 8192;
  const std::ptrdiff_t pieces = std::ptrdiff_t((n + piece - 1) / piece);
  const auto at = [&](std::ptrdiff_t i) {
    const std::size_t begin = std::size_t(i) * piece;
    work(begin, std::min(begin + piece, n));
  };
  if (n <= parallel_elements || threads() == 1) {  // OpenMP allocates even for a team of one
    for (std::ptrdiff_t i = 0; i < pieces; ++i) at(i);
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t i = 0; i < pieces; ++i) at(i);
}

}  // namespace lamina::detail
