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
    const Bits bits = lower_bits(from.part[p] != from.part[p] ? quiet : near);
    std::memcpy(&to[p * width].bits, &bits, sizeof bits);
  }
}
/// The first `n`; past the caches if wanted.
template <Stored T>
LAMINA_STEP void store(const Sixteen& from, T* to, std::size_t n, bool past) {
  if (n == lanes && !past) return round(from, to);
  alignas(64) T all[lanes];
  round(from, all);
  if (n == lanes) return put_past<sizeof all>(all, to);
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
  Sixteen some[2] = {}, products[2] = {};

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
      some[chain].part[p] += a.part[p];
      products[chain].part[p] += b.part[p] * c.part[p];
    }
  }
  LAMINA_STEP void flush() {
    for (int chain = 0; chain < 2; ++chain) {
      for (int p = 0; p < parts; ++p) {
        add(some[chain].part[p], first[p]), add(products[chain].part[p], second[p]);
      }
      some[chain] = {}, products[chain] = {};
    }
  }
  LAMINA_STEP void add_to(double* firsts, double* seconds) const {
    constexpr int half = width / 2;
    for (int i = 0; i < 2 * parts; ++i) {
      D before[2];
      read(firsts + i * half, before[0]), read(seconds + i * half, before[1]);
      before[0] += first[i / 2][i % 2], before[1] += second[i / 2][i % 2];
      std::memcpy(firsts + i * half, &before[0], sizeof(D));
      std::memcpy(seconds + i * half, &before[1], sizeof(D));
    }
  }
};

/// Calls step(at, count) for sixteen elements at a time, the last of which are fewer, each after
/// step.turn_to() their channels.
template <class Step>
LAMINA_STEP void in_steps(const Stretch& piece, Step step) {
  const std::size_t n = piece.n;
  if (piece.period == lanes) {
    step.turn_to(0);
    std::size_t at = 0;
    for (; n - at >= lanes; at += lanes) step(at, std::size_t(lanes));
    if (at < n) step(at, n - at);
    return;
  }
  for (std::size_t row = 0; row < n; row += piece.period) {
    for (std::size_t c = 0; c < piece.channels; c += lanes) {
      step.turn_to(c);
      step(row + c, std::size_t(lanes));
    }
  }
}

/// 64 products of bf16 are exact in f32's 24 bits where they are of like size, and where they are
/// not nothing cancels.
constexpr std::size_t most_in_f32 = 64;

/// The two sums of sixteen channels: terms(at, count, a, b, c) gives those of sixteen elements.
template <Stored T, class Terms>
LAMINA_STEP void sum_lanes(std::size_t n, const Terms& terms, double* out) {
  constexpr std::size_t some = most_in_f32 * 2 * lanes;
  const std::size_t whole = n / (2 * lanes) * (2 * lanes);
  Sums sums;
  Sixteen a, b, c;
  std::size_t at = 0;
  while (at < whole) {
    for (const std::size_t end = whole - at < some ? whole : at + some; at < end; at += 2 * lanes) {
      terms(at, lanes, a, b, c), sums.take(T(), 0, a, b, c);
      terms(at + lanes, lanes, a, b, c), sums.take(T(), 1, a, b, c);
    }
    if constexpr (std::same_as<T, BF16>) sums.flush();
  }
  for (; at < n; at += lanes) {
    terms(at, n - at < lanes ? n - at : lanes, a, b, c);
    sums.take(T(), 0, a, b, c);
  }
  if constexpr (std::same_as<T, BF16>) sums.flush();
  sums.add_to(out, out + lanes);
}

/// Those of channels that lie side by side. Memory is read in its order: taken sixteen channels at
/// a time, it would give half as much.
template <class Terms>
LAMINA_STEP void sum_rows(float, const Stretch& piece, Terms& terms, double* out) {
  Sixteen a, b, c;
  for (std::size_t row = 0; row < piece.n; row += piece.period) {
    for (std::size_t i = 0; i < piece.channels; i += lanes) {
      Sums sums;
      terms.turn_to(i);
      terms(row + i, lanes, a, b, c), sums.take(float(), 0, a, b, c);
      sums.add_to(out + i, out + piece.channels + i);
    }
  }
}
template <class Terms>
LAMINA_STEP void sum_rows(BF16, const Stretch& piece, Terms& terms, double* out) {
  alignas(64) float some[most_channels], products[most_channels];
  Sixteen a, b, c;
  for (std::size_t row = 0; row < piece.n;) {
    const std::size_t end = std::min(row + most_in_f32 * piece.period, piece.n);
    for (std::size_t i = 0; i < piece.channels; ++i) some[i] = 0, products[i] = 0;
    for (; row < end; row += piece.period) {
      for (std::size_t i = 0; i < piece.channels; i += lanes) {
        Sums sums;
        load(some + i, sums.some[0]), load(products + i, sums.products[0]);
        terms.turn_to(i);
        terms(row + i, lanes, a, b, c), sums.take(BF16(), 0, a, b, c);
        round(sums.some[0], some + i), round(sums.products[0], products + i);
      }
    }
    for (std::size_t i = 0; i < piece.channels; i += lanes) {
      Sums sums;
      load(some + i, sums.some[0]), load(products + i, sums.products[0]);
      sums.flush();
      sums.add_to(out + i, out + piece.channels + i);
    }
  }
}

template <Stored T, class Terms>
LAMINA_STEP void sum_up(const Stretch& piece, Terms terms, double* out) {
  for (std::size_t c = 0; c < 2 * piece.channels; ++c) out[c] = 0;
  if (piece.period != lanes) return sum_rows(T(), piece, terms, out);
  terms.turn_to(0);
  sum_lanes<T>(piece.n, terms, out);
}

/// How far ahead to fetch, in bytes: about 4 KB of what is taken.
template <Stored T>
LAMINA_STEP std::size_t ahead_of(const Stretch& piece) {
  constexpr std::size_t some = 4096;
  if (piece.channels == piece.period) return some;
  const std::size_t rows = some / (piece.channels * sizeof(T));
  return std::max<std::size_t>(rows, 1) * piece.period * sizeof(T);
}

template <Stored T>
struct Squares {
  const T* x;
  std::size_t ahead;
  LAMINA_STEP void turn_to(std::size_t) {}
  LAMINA_STEP void operator()(std::size_t at, std::size_t n, Sixteen& a, Sixteen& b,
                              Sixteen& c) const {
    fetch_ahead(x + at, ahead);
    load(x + at, n, a);
    b = a, c = a;
  }
};

template <Stored T>
LAMINA_TARGET void moments(const T* x, Stretch piece, double* out) {
  sum_up<T>(piece, Squares<T>{x, ahead_of<T>(piece)}, out);
}

LAMINA_STEP Signs signs_of(const Sixteen& y) {
  unsigned all = 0;
  for (int p = 0; p < parts; ++p) all |= passing(y.part[p]) << (p * width);
  return Signs(all);
}

/// The gradient of an activation by the signs of y. Without a slope the product is left out, here
/// and in what follows: 0 * infinity would not be 0.
struct Mask {
  float slope;
  bool leaky = slope != 0;
  LAMINA_STEP void apply(Signs signs, Sixteen& dy) const {
    U own;
    for (int l = 0; l < width; ++l) own[l] = 1U << l;
    for (int p = 0; p < parts; ++p) {
      const F below = leaky ? slope * dy.part[p] : F{};
      const U set = own & (unsigned(signs) >> (p * width));
      dy.part[p] = set != 0 ? dy.part[p] : below;
    }
  }
};

/// dy and dy * (x - mean); dy behind an activation where there are signs, and its gradient goes to
/// `kept` where there is one. Zeros behind the last dy add nothing.
template <Stored T>
struct Gradients {
  const T *x, *dy;
  std::size_t ahead;
  const Signs* signs;
  Mask rectified;
  T* kept;
  const float* means;
  Sixteen mean;
  LAMINA_STEP void turn_to(std::size_t channel) { load(means + channel, mean); }
  LAMINA_STEP void operator()(std::size_t at, std::size_t n, Sixteen& a, Sixteen& b,
                              Sixteen& c) const {
    fetch_ahead(dy + at, ahead), fetch_ahead(x + at, ahead);
    load(dy + at, n, a);
    if (signs) {
      rectified.apply(signs[at / lanes], a);
      if (kept) store(a, kept + at, n, false);
    }
    load(x + at, n, c);
    b = a;
    for (int p = 0; p < parts; ++p) c.part[p] -= mean.part[p];
  }
};

template <Stored T>
LAMINA_TARGET void gradient_moments(const T* x, const Signs* signs, const T* dy, float slope,
                                    const float* mean, Stretch piece, T* kept, double* out) {
  sum_up<T>(piece, Gradients<T>{x, dy, ahead_of<T>(piece), signs, {slope}, kept, mean, {}}, out);
}

enum class Below { as_it_is, zero, scaled };

/// y = (x - mean) * a + b: the mean is taken off first, so that a large one costs no digits. Then
/// the epilogue: nothing is added where `added` is null.
template <Stored T>
struct Scale {
  const T *x, *added;
  std::size_t ahead;
  float slope;
  T* y;
  Signs* signs;
  const float *means, *as, *bs;
  Sixteen mean, a, b;
  LAMINA_STEP void turn_to(std::size_t channel) {
    load(means + channel, mean), load(as + channel, a), load(bs + channel, b);
  }
  template <Below below, bool past>
  LAMINA_STEP void run(std::size_t at, std::size_t n) const {
    Sixteen v, more;
    fetch_ahead(x + at, ahead);
    load(x + at, n, v);
    for (int p = 0; p < parts; ++p) v.part[p] = (v.part[p] - mean.part[p]) * a.part[p] + b.part[p];
    if (added) {
      fetch_ahead(added + at, ahead);
      load(added + at, n, more);
      for (int p = 0; p < parts; ++p) v.part[p] += more.part[p];
    }
    if (signs) signs[at / lanes] = signs_of(v);
    for (F& f : v.part) {
      if constexpr (below == Below::zero) f = not_below_zero(f);
      if constexpr (below == Below::scaled) f = f < 0 ? slope * f : f;
    }
    store(v, y + at, n, past);
  }
};
/// Without asking at each element what is to be done: half as fast again.
template <Stored T, Below below, bool past>
struct ScaleAs : Scale<T> {
  LAMINA_STEP void operator()(std::size_t at, std::size_t n) const {
    this->template run<below, past>(at, n);
  }
};
template <Below below, Stored T>
LAMINA_STEP void scale_as(const Scale<T>& all, const Stretch& piece, bool past) {
  if (!past) return in_steps(piece, ScaleAs<T, below, false>{all});
  in_steps(piece, ScaleAs<T, below, true>{all});
  finish_puts();
}

template <Stored T>
LAMINA_TARGET void scale(const T* x, const float* mean, const float* a, const float* b,
                         const T* added, float slope, T* y, Signs* signs, Stretch piece,
                         bool past) {
  const Scale<T> all{x, added, ahead_of<T>(piece), slope, y, signs, mean, a, b, {}, {}, {}};
  if (slope == 1) return scale_as<Below::as_it_is>(all, piece, past);
  if (slope == 0) return scale_as<Below::zero>(all, piece, past);
  scale_as<Below::scaled>(all, piece, past);
}

/// dx = a * dy + b * (x - mean) + c, dy behind an activation where there are signs.
template <Stored T>
struct Combine {
  const T *x, *dy;
  std::size_t ahead;
  const Signs* signs;
  Mask rectified;
  T* dx;
  bool past;
  const float *means, *as, *bs, *cs;
  Sixteen mean, a, b, c;
  LAMINA_STEP void turn_to(std::size_t channel) {
    load(means + channel, mean), load(as + channel, a);
    load(bs + channel, b), load(cs + channel, c);
  }
  LAMINA_STEP void operator()(std::size_t at, std::size_t n) const {
    Sixteen g, v;
    fetch_ahead(dy + at, ahead), fetch_ahead(x + at, ahead);
    load(dy + at, n, g);
    if (signs) rectified.apply(signs[at / lanes], g);
    load(x + at, n, v);
    for (int p = 0; p < parts; ++p)
      g.part[p] = a.part[p] * g.part[p] + (b.part[p] * (v.part[p] - mean.part[p]) + c.part[p]);
    store(g, dx + at, n, past);
  }
};

template <Stored T>
LAMINA_TARGET void combine(const T* x, const Signs* signs, const T* dy, float slope,
                           const float* mean, const float* a, const float* b, const float* c, T* dx,
                           Stretch piece, bool past) {
  in_steps(piece,
           Combine<T>{
               x, dy, ahead_of<T>(piece), signs, {slope}, dx, past, mean, a, b, c, {}, {}, {}, {}});
  if (past) finish_puts();
}

template <Stored T>
constexpr NormLoops<T> loops = {moments<T>, gradient_moments<T>, scale<T>, combine<T>};
