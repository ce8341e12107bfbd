// The loops of batch normalisation for one instruction set: norm_loops.cpp includes this for each,
// in a namespace of its own, behind its vectors and its conversions. They are written as vectors
// because compilers give up on loops that select and round.

/// One value for each lane.
constexpr int parts = lanes / width;
struct Sixteen {
  F part[parts];
};
template <class V>
LAMINA_STEP void read(const void* from, V& to) {
  std::memcpy(&to, from, sizeof to);
}

LAMINA_STEP void load(const float* from, Sixteen& to) {
  for (int p = 0; p < parts; ++p) read(from + p * width, to.part[p]);
}
LAMINA_STEP void load(const BF16* from, Sixteen& to) {
  for (int p = 0; p < parts; ++p) {
    Bits bits;
    read(from + p * width, bits);
    const U wide = widened_bits(bits) << 16;
    read(&wide, to.part[p]);
  }
}
/// The first `n`, zeros behind them.
template <Stored T>
LAMINA_STEP void load(const T* from, std::size_t n, Sixteen& to) {
  if (n == lanes) return load(from, to);
  T some[lanes] = {};
  for (std::size_t l = 0; l < n; ++l) some[l] = from[l];
  load(some, to);
}

LAMINA_STEP void round(const Sixteen& from, float* to) {
  for (int p = 0; p < parts; ++p) std::memcpy(to + p * width, &from.part[p], sizeof(F));
}
/// As put() does.
LAMINA_STEP void round(const Sixteen& from, BF16* to) {
  for (int p = 0; p < parts; ++p) {
    U u;
    read(&from.part[p], u);
    const U near = (u + 0x7FFFU + (u >> 16 & 1U)) >> 16, quiet = u >> 16 | 0x40U;
    const Bits bits = lower_bits((u & 0x7FFFFFFFU) > 0x7F800000U ? quiet : near);
    std::memcpy(&to[p * width].bits, &bits, sizeof bits);
  }
}
/// The first `n`; past the caches if wanted.
template <Stored T>
LAMINA_STEP void store(const Sixteen& from, T* to, std::size_t n, bool past) {
  if (n == lanes && !past) return round(from, to);
  alignas(64) T all[lanes];
  round(from, all);
#if defined(__SSE2__)
  if (n == lanes) {
    const auto* words = reinterpret_cast<const __m128i*>(all);
    for (std::size_t i = 0; i < lanes * sizeof(T) / 16; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, words[i]);
    return;
  }
#endif
  for (std::size_t l = 0; l < n; ++l) to[l] = all[l];
}

/// Adds in f64.
LAMINA_STEP void add(const F& v, D (&sums)[2]) {
  D wide[2];
  to_double(v, wide);
  for (int i = 0; i < 2; ++i) sums[i] += wide[i];
}
LAMINA_STEP void add_product(const F& v, const F& w, D (&sums)[2]) {
  D one[2], other[2];
  to_double(v, one), to_double(w, other);
  for (int i = 0; i < 2; ++i) sums[i] += one[i] * other[i];
}

/// Two sums in each lane, of a and of b * c.
struct Sums {
  D first[parts][2] = {}, second[parts][2] = {};
  F some[2][parts] = {}, products[2][parts] = {};

  /// In f64 from the first element on: converting is cheaper than waiting for memory, and x^2 stays
  /// exact, which sum(x^2)/M - mean^2 needs.
  LAMINA_STEP void take(float, int, const Sixteen& a, const Sixteen& b, const Sixteen& c) {
    for (int p = 0; p < parts; ++p) {
      add(a.part[p], first[p]);
      add_product(b.part[p], c.part[p], second[p]);
    }
  }
  /// Memory gives twice as many of bf16, so some are added up in f32 first, in two chains, since
  /// each waits for its last addition.
  LAMINA_STEP void take(BF16, int chain, const Sixteen& a, const Sixteen& b, const Sixteen& c) {
    for (int p = 0; p < parts; ++p) {
      some[chain][p] += a.part[p];
      products[chain][p] += b.part[p] * c.part[p];
    }
  }
  LAMINA_STEP void flush() {
    for (int chain = 0; chain < 2; ++chain) {
      for (int p = 0; p < parts; ++p) {
        add(some[chain][p], first[p]), add(products[chain][p], second[p]);
        some[chain][p] = F{}, products[chain][p] = F{};
      }
    }
  }
};

/// Calls step(number, at, count) for sixteen elements at a time; the last are fewer.
template <class Step>
LAMINA_STEP void in_steps(std::size_t n, std::size_t stride, const Step& step) {
  std::size_t i = 0;
  for (; (i + 1) * lanes <= n; ++i) step(i, i * stride, std::size_t(lanes));
  if (i * lanes < n) step(i, i * stride, n - i * lanes);
}

/// The two sums by lanes, one behind the other: terms(number, at, count, a, b, c) gives those of
/// sixteen elements. 64 products of bf16 are exact in f32's 24 bits where they are of like size,
/// and where they are not nothing cancels.
template <Stored T, class Terms>
LAMINA_STEP void sum_up(std::size_t n, std::size_t stride, const Terms& terms, double* out) {
  constexpr std::size_t some = 64 * 2;
  const std::size_t whole = n / (2 * lanes) * 2;
  Sums sums;
  Sixteen a, b, c;
  std::size_t i = 0;
  while (i < whole) {
    for (const std::size_t end = whole - i < some ? whole : i + some; i < end; i += 2) {
      terms(i, i * stride, lanes, a, b, c), sums.take(T(), 0, a, b, c);
      terms(i + 1, (i + 1) * stride, lanes, a, b, c), sums.take(T(), 1, a, b, c);
    }
    if constexpr (std::same_as<T, BF16>) sums.flush();
  }
  for (; i * lanes < n; ++i) {
    terms(i, i * stride, n - i * lanes < lanes ? n - i * lanes : lanes, a, b, c);
    sums.take(T(), 0, a, b, c);
  }
  if constexpr (std::same_as<T, BF16>) sums.flush();
  std::memcpy(out, sums.first, sizeof sums.first);
  std::memcpy(out + lanes, sums.second, sizeof sums.second);
}

template <Stored T>
struct Squares {
  const T* x;
  LAMINA_STEP void operator()(std::size_t, std::size_t at, std::size_t n, Sixteen& a, Sixteen& b,
                              Sixteen& c) const {
    load(x + at, n, a);
    b = a, c = a;
  }
};

template <Stored T>
LAMINA_TARGET void moments(const T* x, std::size_t n, std::size_t stride, double* out) {
  sum_up<T>(n, stride, Squares<T>{x}, out);
}

// An activation, and its gradient by the signs of y. Without a slope the product is left out: 0 *
// infinity would not be 0.
LAMINA_STEP void rectify(Sixteen& v, float slope) {
  for (F& part : v.part) {
    const F below = slope == 0 ? F{} : slope * part;
    part = part < 0 ? below : part;
  }
}
LAMINA_STEP Signs signs_of(const Sixteen& y) {
  unsigned all = 0;
  for (int p = 0; p < parts; ++p) all |= passing(y.part[p]) << (p * width);
  return Signs(all);
}
LAMINA_STEP void mask(Signs signs, float slope, Sixteen& dy) {
  U own;
  for (int l = 0; l < width; ++l) own[l] = 1U << l;
  for (int p = 0; p < parts; ++p) {
    const F below = slope == 0 ? F{} : slope * dy.part[p];
    const U set = own & (unsigned(signs) >> (p * width));
    dy.part[p] = set != 0 ? dy.part[p] : below;
  }
}

/// dy and dy * (x - mean); dy behind an activation where there are signs, and its gradient goes to
/// `kept` where there is one. Zeros behind the last dy add nothing.
template <Stored T>
struct Gradients {
  const T *x, *dy;
  const Signs* signs;
  float slope;
  T* kept;
  Sixteen mean;
  LAMINA_STEP void operator()(std::size_t i, std::size_t at, std::size_t n, Sixteen& a, Sixteen& b,
                              Sixteen& c) const {
    load(dy + at, n, a);
    if (signs) {
      mask(signs[i], slope, a);
      if (kept) store(a, kept + at, n, false);
    }
    load(x + at, n, c);
    b = a;
    for (int p = 0; p < parts; ++p) c.part[p] -= mean.part[p];
  }
};

template <Stored T>
LAMINA_TARGET void gradient_moments(const T* x, const Signs* signs, const T* dy, float slope,
                                    const float* mean, std::size_t n, std::size_t stride, T* kept,
                                    double* out) {
  Gradients<T> terms{x, dy, signs, slope, kept, {}};
  load(mean, terms.mean);
  sum_up<T>(n, stride, terms, out);
}

/// y = (x - mean) * a + b: the mean is taken off first, so that a large one costs no digits. Then
/// the epilogue: nothing is added where `added` is null, and a slope of 1 is no activation.
template <Stored T>
struct Scale {
  const T *x, *added;
  float slope;
  T* y;
  Signs* signs;
  bool past;
  Sixteen mean, a, b;
  LAMINA_STEP void operator()(std::size_t i, std::size_t at, std::size_t n) const {
    Sixteen v, more;
    load(x + at, n, v);
    for (int p = 0; p < parts; ++p) v.part[p] = (v.part[p] - mean.part[p]) * a.part[p] + b.part[p];
    if (added) {
      load(added + at, n, more);
      for (int p = 0; p < parts; ++p) v.part[p] += more.part[p];
    }
    if (signs) signs[i] = signs_of(v);
    if (slope != 1) rectify(v, slope);
    store(v, y + at, n, past);
  }
};

template <Stored T>
LAMINA_TARGET void scale(const T* x, const float* mean, const float* a, const float* b,
                         const T* added, float slope, T* y, Signs* signs, std::size_t n,
                         std::size_t stride, bool past) {
  Scale<T> step{x, added, slope, y, signs, past, {}, {}, {}};
  load(mean, step.mean), load(a, step.a), load(b, step.b);
  in_steps(n, stride, step);
  if (past) finish_puts();
}

/// dx = a * dy + b * (x - mean) + c, dy behind an activation where there are signs.
template <Stored T>
struct Combine {
  const T *x, *dy;
  const Signs* signs;
  float slope;
  T* dx;
  bool past;
  Sixteen mean, a, b, c;
  LAMINA_STEP void operator()(std::size_t i, std::size_t at, std::size_t n) const {
    Sixteen g, v;
    load(dy + at, n, g);
    if (signs) mask(signs[i], slope, g);
    load(x + at, n, v);
    for (int p = 0; p < parts; ++p)
      g.part[p] = a.part[p] * g.part[p] + (b.part[p] * (v.part[p] - mean.part[p]) + c.part[p]);
    store(g, dx + at, n, past);
  }
};

template <Stored T>
LAMINA_TARGET void combine(const T* x, const Signs* signs, const T* dy, float slope,
                           const float* mean, const float* a, const float* b, const float* c, T* dx,
                           std::size_t n, std::size_t stride, bool past) {
  Combine<T> step{x, dy, signs, slope, dx, past, {}, {}, {}, {}};
  load(mean, step.mean), load(a, step.a), load(b, step.b), load(c, step.c);
  in_steps(n, stride, step);
  if (past) finish_puts();
}

template <Stored T>
constexpr NormLoops<T> loops = {moments<T>, gradient_moments<T>, scale<T>, combine<T>};
