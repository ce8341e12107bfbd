// What Winograd's convolution does with one tile or one small product, in registers of AVX2: eight
// channels lie together everywhere.
#pragma once

#include <immintrin.h>

#include <cstdint>

/// For functions that only run where the processor has AVX2. Lambdas and what OpenMP outlines
/// would not inherit it.
#define LAMINA_AVX2 __attribute__((target("avx2,fma")))
#define LAMINA_AVX2_INLINE LAMINA_AVX2 inline __attribute__((always_inline))

namespace lamina::detail {

using Lanes = __m256;

// The matrices of Winograd's filtering. `apply` takes one row or column, whose elements lie `from`
// or `step` apart.

/// F(4, 3): tiles of 4x4, for the points 0, 1, -1, 2, -2 and infinity.
struct F4 {
  static constexpr int tile = 4, points = 36;

  /// Six values of x: B^T
  struct OfImage {
    static constexpr int in = 6, out = 6;
    LAMINA_AVX2_INLINE static void apply(const Lanes* d, int from, Lanes* to, int step) {
      const Lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from], d4 = d[4 * from],
                  d5 = d[5 * from];
      const Lanes even = d4 - 4 * d2, odd = d3 - 4 * d1, near = d4 - d2, far = 2 * (d3 - d1);
      to[0] = 4 * d0 - 5 * d2 + d4;
      to[step] = even + odd;
      to[2 * step] = even - odd;
      to[3 * step] = near + far;
      to[4 * step] = near - far;
      to[5 * step] = 4 * d1 - 5 * d3 + d5;
    }
  };

  /// Four values of y out of six products: A^T
  struct ToResult {
    static constexpr int in = 6, out = 4;
    LAMINA_AVX2_INLINE static void apply(const Lanes* m, int from, Lanes* to, int step) {
      const Lanes s = m[from] + m[2 * from], d = m[from] - m[2 * from];
      const Lanes s2 = m[3 * from] + m[4 * from], d2 = m[3 * from] - m[4 * from];
      to[0] = m[0] + s + s2;
      to[step] = d + 2 * d2;
      to[2 * step] = s + 4 * s2;
      to[3 * step] = d + 8 * d2 + m[5 * from];
    }
  };

  /// Four values of dy: A
  struct OfResult {
    static constexpr int in = 4, out = 6;
    LAMINA_AVX2_INLINE static void apply(const Lanes* d, int from, Lanes* to, int step) {
      const Lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from];
      const Lanes even = d0 + d2, odd = d1 + d3, even2 = d0 + 4 * d2, odd2 = 2 * d1 + 8 * d3;
      to[0] = d0;
      to[step] = even + odd;
      to[2 * step] = even - odd;
      to[3 * step] = even2 + odd2;
      to[4 * step] = even2 - odd2;
      to[5 * step] = d3;
    }
  };

  /// Three values of w: G
  struct OfFilter {
    static constexpr int in = 3, out = 6;
    LAMINA_AVX2_INLINE static void apply(const Lanes* g, int from, Lanes* to, int step) {
      const Lanes g0 = g[0], g1 = g[from], g2 = g[2 * from];
      const Lanes even = (g0 + g2) * (-1.f / 6), odd = g1 * (-1.f / 6);
      const Lanes even2 = g0 * (1.f / 24) + g2 * (1.f / 6), odd2 = g1 * (1.f / 12);
      to[0] = g0 * 0.25f;
      to[step] = even + odd;
      to[2 * step] = even - odd;
      to[3 * step] = even2 + odd2;
      to[4 * step] = even2 - odd2;
      to[5 * step] = g2;
    }
  };

  /// Three values of dw out of six sums of products: G^T
  struct ToFilter {
    static constexpr int in = 6, out = 3;
    LAMINA_AVX2_INLINE static void apply(const Lanes* m, int from, Lanes* to, int step) {
      const Lanes s = m[from] + m[2 * from], d = m[2 * from] - m[from];
      const Lanes s2 = m[3 * from] + m[4 * from], d2 = m[3 * from] - m[4 * from];
      to[0] = m[0] * 0.25f - s * (1.f / 6) + s2 * (1.f / 24);
      to[step] = d * (1.f / 6) + d2 * (1.f / 12);
      to[2 * step] = (s2 - s) * (1.f / 6) + m[5 * from];
    }
  };
};

/// F(2, 3): tiles of 2x2, for the points 0, 1, -1 and infinity; forward alone.
struct F2 {
  static constexpr int tile = 2, points = 16;

  /// Four values of x: B^T
  struct OfImage {
    static constexpr int in = 4, out = 4;
    LAMINA_AVX2_INLINE static void apply(const Lanes* d, int from, Lanes* to, int step) {
      const Lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from];
      to[0] = d0 - d2;
      to[step] = d1 + d2;
      to[2 * step] = d2 - d1;
      to[3 * step] = d1 - d3;
    }
  };

  /// Two values of y out of four products: A^T
  struct ToResult {
    static constexpr int in = 4, out = 2;
    LAMINA_AVX2_INLINE static void apply(const Lanes* m, int from, Lanes* to, int step) {
      to[0] = m[0] + m[from] + m[2 * from];
      to[step] = m[from] - m[2 * from] - m[3 * from];
    }
  };

  /// Three values of w: G
  struct OfFilter {
    static constexpr int in = 3, out = 4;
    LAMINA_AVX2_INLINE static void apply(const Lanes* g, int from, Lanes* to, int step) {
      const Lanes g0 = g[0], g1 = g[from], g2 = g[2 * from];
      const Lanes even = (g0 + g2) * 0.5f, odd = g1 * 0.5f;
      to[0] = g0;
      to[step] = even + odd;
      to[2 * step] = even - odd;
      to[3 * step] = g2;
    }
  };
};

/// Along both axes: in x in values, row by row, become out x out.
template <class T>
LAMINA_AVX2_INLINE void transform(const Lanes* from, Lanes* to) {
  Lanes half[T::out * T::in];
  for (int j = 0; j < T::in; ++j) T::apply(from + j, T::in, half + j, T::in);
  for (int i = 0; i < T::out; ++i) T::apply(half + i * T::in, 1, to + i * T::out, 1);
}

/// A block of channels of one sample, row by row.
struct Plane {
  float* data;
  std::int64_t h, w;
  float* at(std::int64_t row, std::int64_t column) const { return data + (row * w + column) * 8; }
  bool holds(std::int64_t row, std::int64_t column, int size) const {
    return row >= 0 && column >= 0 && row + size <= h && column + size <= w;
  }
};

/// The size x size values from there on, with zeros around the plane.
template <int size>
LAMINA_AVX2_INLINE void load(const Plane& from, std::int64_t row, std::int64_t column, Lanes* to) {
  if (from.holds(row, column, size)) {
    for (int i = 0; i < size; ++i)
      for (int j = 0; j < size; ++j)
        to[i * size + j] = _mm256_loadu_ps(from.at(row + i, column + j));
  } else {
    for (int i = 0; i < size; ++i)
      for (int j = 0; j < size; ++j)
        to[i * size + j] = from.holds(row + i, column + j, 1)
                               ? _mm256_loadu_ps(from.at(row + i, column + j))
                               : _mm256_setzero_ps();
  }
}

/// Stores what lies within the plane.
template <int size>
LAMINA_AVX2_INLINE void store(const Lanes* from, const Plane& to, std::int64_t row,
                              std::int64_t column) {
  const bool whole = to.holds(row, column, size);
  for (int i = 0; i < size; ++i)
    for (int j = 0; j < size; ++j)
      if (whole || to.holds(row + i, column + j, 1)) {
        _mm256_storeu_ps(to.at(row + i, column + j), from[i * size + j]);
      }
}

/// A matrix in memory: the distances between its rows and between its columns.
struct Strides {
  std::int64_t row, column;
};

/// c += a b, or c = a b unless `add`, where c has `rows` rows of `vectors` times eight columns. The
/// columns of b and c lie in eights, whose distances theirs are.
template <int rows, int vectors>
LAMINA_AVX2 void product(const float* a, Strides as, const float* b, Strides bs, float* c,
                         Strides cs, std::int64_t steps, bool add) {
  Lanes sums[rows][vectors];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 6
    for (int v = 0; v < vectors; ++v)
      sums[i][v] = add ? _mm256_loadu_ps(c + i * cs.row + v * cs.column) : _mm256_setzero_ps();
  for (std::int64_t l = 0; l < steps; ++l) {
    Lanes right[vectors];
#pragma GCC unroll 6
    for (int v = 0; v < vectors; ++v) right[v] = _mm256_loadu_ps(b + v * bs.column);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const Lanes left = _mm256_broadcast_ss(a + i * as.row);
#pragma GCC unroll 6
      for (int v = 0; v < vectors; ++v) sums[i][v] = _mm256_fmadd_ps(left, right[v], sums[i][v]);
    }
    a += as.column, b += bs.row;
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 6
    for (int v = 0; v < vectors; ++v) _mm256_storeu_ps(c + i * cs.row + v * cs.column, sums[i][v]);
}

}  // namespace lamina::detail
