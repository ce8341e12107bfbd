// What products of bf16 are made of, on registers and on tiles: a chunk of positions is copied, and
// multiplied. For dw_products.cpp alone.
#pragma once

#include "cpu/simd.hpp"
#include "cpu/tiles.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#if defined(LAMINA_HAS_TILES)
#define LAMINA_HAS_BF16
#define LAMINA_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define LAMINA_BF16_STEP LAMINA_BF16 __attribute__((always_inline)) inline
#endif

namespace lamina::detail {
namespace {

constexpr int block = 16;   // channels
constexpr int chunk = 256;  // positions, so that what a tile reads of dy stays in the first cache
/// From a packed block of channels to the next one, in pairs of positions: not a power of two, lest
/// they meet in the same places of a cache.
constexpr int apart = chunk / 2 + 1;
constexpr std::size_t packed_bytes = apart * 2 * block * sizeof(BF16);

#if defined(LAMINA_HAS_BF16)

/// Where positions lie in a plane, in elements; nowhere: padding.
using Offsets = std::array<std::ptrdiff_t, chunk>;
constexpr std::ptrdiff_t nowhere = -(std::ptrdiff_t(1) << 40);

/// The values of 16 channels at two positions: those of a channel side by side.
struct alignas(64) Pairs {
  std::uint32_t of_channel[block];
};
struct alignas(64) Sixteen {
  float value[block];
};

LAMINA_BF16_STEP __m512bh vector(const Pairs& p) {
  return (__m512bh)_mm512_load_si512(p.of_channel);
}

/// Brings the channels of two positions, one behind the other, side by side.
alignas(64) constexpr std::uint16_t order[2 * block] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

/// Copies the positions of a plane, zeros behind its first `channels`; the pairs are `step` apart.
LAMINA_BF16 void pack(const BF16* plane, std::int64_t channels, const Offsets& where, int pairs,
                      Pairs* to, int step) {
  alignas(64) static constexpr BF16 zeros[block] = {};
  const auto there = __mmask16((1u << std::clamp<std::int64_t>(channels, 0, block)) - 1);
  const __m512i side_by_side = _mm512_load_si512(order);
  const auto half = [&](int i) __attribute__((target("avx512f,avx512bw,avx512vl"))) {
    const std::ptrdiff_t at = where[std::size_t(i)];
    const BF16* from = at == nowhere ? zeros : plane + at;
    return _mm256_maskz_loadu_epi16(there, from);
  };
  for (int p = 0; p < pairs; ++p) {
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(half(2 * p)), half(2 * p + 1), 1);
    _mm512_store_si512(to[p * step].of_channel, _mm512_permutexvar_epi16(side_by_side, both));
  }
}

/// Of each position, which of the elements from there on are taken, the first one by the last bit.
using Masks = std::array<std::uint64_t, chunk>;

/// The same of some blocks of channels, which lie side by side at each position, or of the elements
/// that `taken` says. Memory is read in its order.
LAMINA_BF16 void pack_beside(const BF16* from, std::int64_t channels, const Offsets& where,
                             const Masks* taken, int pairs, int first, int blocks, Pairs* to) {
  const __m512i side_by_side = _mm512_load_si512(order);
  for (int p = 0; p < pairs; ++p) {
    const std::ptrdiff_t* const at = where.data() + 2 * p;
    // Where nothing is read the address still has to be one of memory: faults are put off at a
    // cost.
    const BF16* const one = at[0] == nowhere ? from : from + at[0];
    const BF16* const other = at[1] == nowhere ? from : from + at[1];
    for (int b = 0; b < blocks; ++b) {
      const std::int64_t c = (first + b) * block;
      const auto all = __mmask16((1u << std::clamp<std::int64_t>(channels - c, 0, block)) - 1);
      const auto there = [&](int i) {
        if (at[i] == nowhere) return __mmask16(0);
        return taken ? __mmask16((*taken)[std::size_t(2 * p + i)] >> c) : all;
      };
      const __m512i both =
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(there(0), one + c)),
                             _mm256_maskz_loadu_epi16(there(1), other + c), 1);
      _mm512_store_si512(to[b * apart + p].of_channel,
                         _mm512_permutexvar_epi16(side_by_side, both));
    }
  }
}

/// Pairs of sixteen channels, turned: those of a channel side by side.
LAMINA_TILES void turn(Pairs (&all)[block]) {
  __m512i a[block], b[block];
  for (int i = 0; i < block; ++i) a[i] = _mm512_load_si512(all[i].of_channel);
  for (int i = 0; i < block; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < block; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]), a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // Each quarter of a[i + j] has channel 4 * quarter + j of pairs i to i + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i even[2] = {_mm512_shuffle_i32x4(a[j], a[4 + j], 0x88),
                             _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88)};
    const __m512i odd[2] = {_mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD),
                            _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD)};
    _mm512_store_si512(all[j].of_channel, _mm512_shuffle_i32x4(even[0], even[1], 0x88));
    _mm512_store_si512(all[4 + j].of_channel, _mm512_shuffle_i32x4(odd[0], odd[1], 0x88));
    _mm512_store_si512(all[8 + j].of_channel, _mm512_shuffle_i32x4(even[0], even[1], 0xDD));
    _mm512_store_si512(all[12 + j].of_channel, _mm512_shuffle_i32x4(odd[0], odd[1], 0xDD));
  }
}

/// R blocks of dy by C of x, as multiply() below, but blocks of dy lie `dy_step` pairs apart, and
/// those of x, turned, `x_step`. Sixteen pairs at a time. The compiler does not know that tiles are
/// read from memory.
template <int R, int C>
LAMINA_TILES __attribute__((noinline)) void multiply_tiles(const Pairs* dy, int dy_step,
                                                           const Pairs* x, int x_step, int pairs,
                                                           Sixteen* sums, std::ptrdiff_t row,
                                                           bool start) {
  constexpr int bytes = sizeof(Sixteen);
  asm volatile("" ::: "memory");
  if (start) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, bytes);
    if constexpr (C > 1) {
      _tile_loadd(1, sums + block, bytes);
    }
    if constexpr (R > 1) {
      _tile_loadd(2, sums + row, bytes);
    }
    if constexpr (R > 1 && C > 1) {
      _tile_loadd(3, sums + row + block, bytes);
    }
  }
  for (int p = 0; p < pairs; p += block) {
    _tile_loadd(4, dy + p, bytes);
    _tile_loadd(6, x + p, bytes);
    _tile_dpbf16ps(0, 6, 4);
    if constexpr (C > 1) {
      _tile_loadd(7, x + x_step + p, bytes);
      _tile_dpbf16ps(1, 7, 4);
    }
    if constexpr (R > 1) {
      _tile_loadd(5, dy + dy_step + p, bytes);
      _tile_dpbf16ps(2, 6, 5);
      if constexpr (C > 1) {
        _tile_dpbf16ps(3, 7, 5);
      }
    }
  }
  _tile_stored(0, sums, bytes);
  if constexpr (C > 1) {
    _tile_stored(1, sums + block, bytes);
  }
  if constexpr (R > 1) {
    _tile_stored(2, sums + row, bytes);
  }
  if constexpr (R > 1 && C > 1) {
    _tile_stored(3, sums + row + block, bytes);
  }
  asm volatile("" ::: "memory");
}

/// What the next chunk will read of a plane, fetched while this one is computed.
struct Ahead {
  const BF16* plane = nullptr;
  const Offsets* where = nullptr;

  LAMINA_BF16_STEP void fetch(int pair) const {
    if (plane)
      _mm_prefetch(reinterpret_cast<const char*>(plane + (*where)[2 * std::size_t(pair)]),
                   _MM_HINT_T1);
  }
};

/// R blocks of dy by C channels of x: `dy` has R blocks for each pair of positions, x one, and
/// blocks of rows lie `row` apart in `sums`. Added to what is there unless this is the `start`.
template <int R, int C>
LAMINA_BF16_STEP void multiply(const Pairs* dy, const Pairs* x, int first, int pairs, Ahead ahead,
                               Sixteen* sums, std::ptrdiff_t row, bool start) {
  __m512 tile[R][C];
  for (auto& r : tile)
    for (auto& c : r) c = _mm512_setzero_ps();
  for (int p = 0; p < pairs; ++p) {
    ahead.fetch(p);
    __m512bh of_dy[R];
    for (int r = 0; r < R; ++r) of_dy[r] = vector(dy[p * R + r]);
    for (int c = 0; c < C; ++c) {
      const auto of_x = (__m512bh)_mm512_set1_epi32(int(x[p].of_channel[first + c]));
      for (int r = 0; r < R; ++r) tile[r][c] = _mm512_dpbf16_ps(tile[r][c], of_dy[r], of_x);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float* to = sums[r * row + first + c].value;
      const __m512 before = start ? _mm512_setzero_ps() : _mm512_load_ps(to);
      _mm512_store_ps(to, _mm512_add_ps(before, tile[r][c]));
    }
}

/// Adds the sums of a block of dy over positions, of which there is one pair each `step`.
LAMINA_BF16 void add_up(const Pairs* dy, int step, int pairs, Sixteen& sums) {
  const auto ones = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  __m512 some = _mm512_setzero_ps();
  for (int p = 0; p < pairs; ++p) some = _mm512_dpbf16_ps(some, vector(dy[p * step]), ones);
  _mm512_store_ps(sums.value, _mm512_add_ps(_mm512_load_ps(sums.value), some));
}

/// Puts sixteen channels of x, rows of `from`, as pairs of those, which lie `step` apart; past the
/// caches if wanted.
LAMINA_BF16 void write(const Sixteen* from, float* to, std::ptrdiff_t step, bool past) {
  alignas(64) std::int32_t low[block], high[block];
  for (int i = 0; i < block / 2; ++i) {
    low[2 * i] = i, low[2 * i + 1] = block + i;
    high[2 * i] = block / 2 + i, high[2 * i + 1] = block + block / 2 + i;
  }
  const __m512i first = _mm512_load_si512(low), second = _mm512_load_si512(high);
  for (int c = 0; c < block; c += 2, to += step) {
    const __m512 a = _mm512_load_ps(from[c].value), b = _mm512_load_ps(from[c + 1].value);
    const __m512 left = _mm512_permutex2var_ps(a, first, b);
    const __m512 right = _mm512_permutex2var_ps(a, second, b);
    if (past) {
      _mm512_stream_ps(to, left), _mm512_stream_ps(to + block, right);
    } else {
      _mm512_storeu_ps(to, left), _mm512_storeu_ps(to + block, right);
    }
  }
}

#endif

}  // namespace
}  // namespace lamina::detail
