// The loops of batch normalisation, compiled for several instruction sets.
#include "cpu/norm_loops.hpp"

#include <cstring>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace lamina::detail {
namespace {

/// What a loop is made of.
#define LAMINA_STEP LAMINA_TARGET __attribute__((always_inline)) inline
/// Vectors of n values in f32, of their bits, of half as many in f64, and of n in bf16.
#define LAMINA_VECTORS(n)                                      \
  constexpr int width = n;                                     \
  using F = float __attribute__((vector_size(4 * n)));         \
  using U = std::uint32_t __attribute__((vector_size(4 * n))); \
  using D = double __attribute__((vector_size(4 * n)));        \
  using Bits = std::uint16_t __attribute__((vector_size(2 * n)))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAMINA_UP_TO_AVX512

// Conversions by name, since the compiler's own take a few instructions each; passing(), a bit for
// each value that an activation lets pass as it was, NaN among them; and the maximum that is the
// second one where either is NaN, or both are zeros.
namespace avx512 {

LAMINA_VECTORS(16);
#define LAMINA_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))

LAMINA_STEP U widened_bits(const Bits& bits) { return U(_mm512_cvtepu16_epi32(__m256i(bits))); }
LAMINA_STEP Bits lower_bits(const U& u) { return Bits(_mm512_cvtepi32_epi16(__m512i(u))); }
LAMINA_STEP void to_double(const F& f, D (&to)[2]) {
  to[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(f));
  to[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(f, 1));
}
LAMINA_STEP unsigned passing(const F& f) { return _mm512_cmp_ps_mask(f, F{}, _CMP_NLE_UQ); }
LAMINA_STEP F not_below_zero(const F& f) { return _mm512_max_ps(F{}, f); }

#include "cpu/norm_vectors.hpp"
#undef LAMINA_TARGET

}  // namespace avx512

namespace avx2 {

LAMINA_VECTORS(8);
#define LAMINA_TARGET __attribute__((target("avx2,fma")))

LAMINA_STEP U widened_bits(const Bits& bits) { return U(_mm256_cvtepu16_epi32(__m128i(bits))); }
LAMINA_STEP Bits lower_bits(const U& u) {
  const auto both = __m256i(u);
  return Bits(_mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
}
LAMINA_STEP void to_double(const F& f, D (&to)[2]) {
  to[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(f));
  to[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(f, 1));
}
LAMINA_STEP unsigned passing(const F& f) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(f, F{}, _CMP_NLE_UQ)));
}
LAMINA_STEP F not_below_zero(const F& f) { return _mm256_max_ps(F{}, f); }

#include "cpu/norm_vectors.hpp"
#undef LAMINA_TARGET

}  // namespace avx2
#endif

namespace any {

LAMINA_VECTORS(4);
#define LAMINA_TARGET

LAMINA_STEP U widened_bits(const Bits& bits) { return __builtin_convertvector(bits, U); }
LAMINA_STEP Bits lower_bits(const U& u) { return __builtin_convertvector(u, Bits); }
LAMINA_STEP void to_double(const F& f, D (&to)[2]) {
  to[0] = D{double(f[0]), double(f[1])}, to[1] = D{double(f[2]), double(f[3])};
}
LAMINA_STEP unsigned passing(const F& f) {
  unsigned all = 0;
  for (int l = 0; l < width; ++l) all |= unsigned(!(f[l] <= 0)) << l;
  return all;
}
LAMINA_STEP F not_below_zero(const F& f) { return f < 0 ? F{} : f; }

#include "cpu/norm_vectors.hpp"
#undef LAMINA_TARGET

}  // namespace any

}  // namespace

template <Stored T>
const NormLoops<T>& norm_loops([[maybe_unused]] InstructionSet set) {
#if defined(LAMINA_UP_TO_AVX512)
  if (set >= InstructionSet::avx512_core) return avx512::loops<T>;
  if (set >= InstructionSet::avx2) return avx2::loops<T>;
#endif
  return any::loops<T>;
}

template const NormLoops<float>& norm_loops(InstructionSet);
template const NormLoops<BF16>& norm_loops(InstructionSet);

}  // namespace lamina::detail
