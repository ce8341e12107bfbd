// The loops of the ceilings, for one instruction set. Included once for each of them, with
//   LAMINA_SET     name of a namespace
//   LAMINA_VECTOR  bytes of a register
//   LAMINA_TARGET  attribute that allows the compiler these instructions
// A template over the width would not do: vectors are cut into what the instruction set of the
// surrounding function has before templates that are inlined would get to a wider one.

namespace LAMINA_SET {

/// 12 chains of multiply-adds: enough to hide a latency of 4 cycles on 2 ports (and one of 8, where
/// multiply and add are two instructions, on 1), with 2 of sse2's and avx2's 16 registers left for
/// the constants and 2 to spare.
template <class T>
LAMINA_TARGET void multiply_add(std::size_t times, T* out) {
  typedef T V __attribute__((vector_size(LAMINA_VECTOR)));
  constexpr std::size_t lanes = LAMINA_VECTOR / sizeof(T);
  V scale = V{} + out[0], shift = V{} + out[1];
  V a = V{}, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5;
  V g = a + 6, h = a + 7, i = a + 8, j = a + 9, k = a + 10, l = a + 11;
  for (std::size_t n = 0; n < times; ++n) {
    a = a * scale + shift, b = b * scale + shift, c = c * scale + shift, d = d * scale + shift;
    e = e * scale + shift, f = f * scale + shift, g = g * scale + shift, h = h * scale + shift;
    i = i * scale + shift, j = j * scale + shift, k = k * scale + shift, l = l * scale + shift;
  }
  a += b + c + d + e + f + g + h + i + j + k + l;
  for (std::size_t lane = 0; lane < lanes; ++lane) out[2] += a[lane];
}

/// a = b + s * c, `times` times; n is a multiple of the floats in a register.
LAMINA_TARGET inline void triad(float* a, const float* b, const float* c, std::size_t n, float s,
                                std::size_t times) {
  typedef float V __attribute__((vector_size(LAMINA_VECTOR), may_alias));
  constexpr std::size_t lanes = LAMINA_VECTOR / sizeof(float);
  const V scale = V{} + s;
  for (std::size_t t = 0; t < times; ++t) {
    for (std::size_t i = 0; i < n; i += lanes)
      *reinterpret_cast<V*>(a + i) =
          *reinterpret_cast<const V*>(b + i) + scale * *reinterpret_cast<const V*>(c + i);
    asm volatile("" ::: "memory");  // every pass anew
  }
}

/// x = s * x, `times` times; n is a multiple of the floats in a register.
LAMINA_TARGET inline void scale(float* x, std::size_t n, float s, std::size_t times) {
  typedef float V __attribute__((vector_size(LAMINA_VECTOR), may_alias));
  constexpr std::size_t lanes = LAMINA_VECTOR / sizeof(float);
  const V factor = V{} + s;
  for (std::size_t t = 0; t < times; ++t) {
    for (std::size_t i = 0; i < n; i += lanes) *reinterpret_cast<V*>(x + i) *= factor;
    asm volatile("" ::: "memory");
  }
}

/// The sum in 8 chains, so that no addition waits for the one before; n is a multiple of the floats
/// in 8 registers.
LAMINA_TARGET inline float read(const float* x, std::size_t n, std::size_t times) {
  typedef float V __attribute__((vector_size(LAMINA_VECTOR), may_alias));
  constexpr std::size_t lanes = LAMINA_VECTOR / sizeof(float), step = 8 * lanes;
  V a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (std::size_t t = 0; t < times; ++t) {
    for (std::size_t i = 0; i < n; i += step) {
      const V* v = reinterpret_cast<const V*>(x + i);
      a += v[0], b += v[1], c += v[2], d += v[3], e += v[4], f += v[5], g += v[6], h += v[7];
    }
    asm volatile("" ::: "memory");
  }
  a += b + c + d + e + f + g + h;
  float sum = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) sum += a[lane];
  return sum;
}

inline constexpr Loops loops = {
    LAMINA_VECTOR, multiply_add<float>, multiply_add<double>, nullptr, triad, read, scale};

}  // namespace LAMINA_SET
