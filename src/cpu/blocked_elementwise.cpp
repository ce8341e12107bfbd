// Elementwise loops of the CPU back end: activation, sum, dropout, optimizer step, norm.
#include "cpu/blocked.hpp"
#include "cpu/simd.hpp"

#include <cmath>
#include <cstring>

namespace lamina::detail {
namespace {

/// Zero unless `keep`.
inline float kept(float v, bool keep) { return keep ? v : 0; }
inline BF16 kept(BF16 v, bool keep) {
  v.bits = keep ? v.bits : std::uint16_t(0);
  return v;
}

template <Stored T>
LAMINA_SIMD void leaky_relu_piece(const T* x, float slope, T* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float v = widened(x[i]);
    put(v < 0 ? slope * v : v, y[i]);
  }
}

template <Stored T>
LAMINA_SIMD void leaky_relu_grad_piece(const T* r, const T* dy, float slope, T* dx, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float g = widened(dy[i]);
    put(widened(r[i]) <= 0 ? slope * g : g, dx[i]);
  }
}

// Without a slope the product is left out: 0 * infinity would not be 0.
template <Stored T>
LAMINA_SIMD void relu_piece(const T* x, T* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = kept(x[i], !(widened(x[i]) < 0));
}

template <Stored T>
LAMINA_SIMD void relu_grad_piece(const T* r, const T* dy, T* dx, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) dx[i] = kept(dy[i], !(widened(r[i]) <= 0));
}

template <Stored T>
LAMINA_SIMD void add_piece(const T* x1, const T* x2, T* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) put(widened(x1[i]) + widened(x2[i]), y[i]);
}

template <Stored T>
LAMINA_SIMD void add_relu_piece(const T* x, T* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float v = widened(y[i]) + widened(x[i]);
    put(v < 0 ? 0 : v, y[i]);
  }
}

template <Stored T>
LAMINA_SIMD void add_leaky_relu_piece(const T* x, float slope, T* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float v = widened(y[i]) + widened(x[i]);
    put(v < 0 ? slope * v : v, y[i]);
  }
}

template <Stored T>
LAMINA_SIMD void add_to_piece(float* sums, const T* x, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) sums[i] += widened(x[i]);
}

template <Stored From, Stored To>
LAMINA_SIMD void convert_piece(const From* x, To* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) put(widened(x[i]), y[i]);
}

/// The same, past the caches.
LAMINA_SIMD void round_past_piece(const float* x, BF16* y, std::size_t n) {
  std::size_t i = 0;
  alignas(64) BF16 line[32];
  for (; i + std::size(line) <= n; i += std::size(line)) {
#pragma omp simd
    for (std::size_t l = 0; l < std::size(line); ++l) put(x[i + l], line[l]);
    put_past<sizeof line>(line, y + i);
  }
  convert_piece(x + i, y + i, n - i);
}

/// `keep` is all ones, or zero. With a branch this would wait for half of all elements.
template <Stored T>
LAMINA_SIMD void dropout_piece(const std::uint32_t* keep, float scale, const T* x, T* y,
                               std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const auto scaled = std::bit_cast<std::uint32_t>(widened(x[i]) * scale);
    put(std::bit_cast<float>(scaled & keep[i]), y[i]);
  }
}

/// Of elements that follow one another, from the mask's element `first` on.
template <Stored T>
void dropout_run(const DropoutMask& mask, std::uint64_t first, float scale, const T* x, T* y,
                 std::size_t n) {
  std::uint32_t keep[1024];
  for (std::size_t i = 0; i < n; i += std::size(keep)) {
    const std::size_t size = std::min(std::size(keep), n - i);
    mask.each(first + i, std::int64_t(size),
              [&](std::int64_t k, bool stays) { keep[k] = 0 - std::uint32_t(stays); });
    dropout_piece(keep, scale, x + i, y + i, size);
  }
}

struct Sgd {
  float rate, decay, scale, momentum;
};

LAMINA_SIMD void sgd_piece(Sgd s, float* w, const float* dw, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) w[i] -= s.rate * (s.scale * dw[i] + s.decay * w[i]);
}

LAMINA_SIMD void momentum_piece(Sgd s, float* w, const float* dw, float* v, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    v[i] = s.momentum * v[i] + (s.scale * dw[i] + s.decay * w[i]);
    w[i] -= s.rate * v[i];
  }
}

LAMINA_SIMD void nesterov_piece(Sgd s, float* w, const float* dw, float* v, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float g = s.scale * dw[i] + s.decay * w[i];
    v[i] = s.momentum * v[i] + g;
    w[i] -= s.rate * (g + s.momentum * v[i]);
  }
}

struct Adam {
  float rate, l2, shrink, scale, beta1, beta2, new1, new2, root, epsilon;
};

LAMINA_SIMD void adam_piece(Adam a, float* w, const float* dw, float* m, float* v, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float g = a.scale * dw[i] + a.l2 * w[i];
    m[i] = a.beta1 * m[i] + a.new1 * g;
    v[i] = a.beta2 * v[i] + a.new2 * (g * g);
    w[i] = a.shrink * w[i] - a.rate * m[i] / (std::sqrt(v[i]) * a.root + a.epsilon);
  }
}

// Sixteen lanes, written out so that every instruction set adds in the same order.
template <Stored T>
LAMINA_SIMD double squares(const T* x, std::size_t n) {
  double lanes[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
#pragma omp simd
    for (int l = 0; l < 16; ++l) {
      const double v = widened(x[i + l]);
      lanes[l] += v * v;
    }
  }
  for (; i < n; ++i) lanes[0] += double(widened(x[i])) * double(widened(x[i]));
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

template <Stored T>
void leaky_relu(const T* x, float slope, T* y, std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    if (slope == 0) return relu_piece(x + begin, y + begin, end - begin);
    leaky_relu_piece(x + begin, slope, y + begin, end - begin);
  });
}

template <Stored T>
void leaky_relu_grad(const T* reference, const T* dy, float slope, T* dx, std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    const std::size_t size = end - begin;
    if (slope == 0) return relu_grad_piece(reference + begin, dy + begin, dx + begin, size);
    leaky_relu_grad_piece(reference + begin, dy + begin, slope, dx + begin, size);
  });
}

template <Stored T>
void finish(T* y, const T* added, float slope, std::size_t n) {
  if (!added) return leaky_relu(y, slope, y, n);
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    if (slope == 0) return add_relu_piece(added + begin, y + begin, end - begin);
    add_leaky_relu_piece(added + begin, slope, y + begin, end - begin);
  });
}

template <Stored T>
void add(std::span<const View> xs, T* y, std::size_t n) {
  const auto at = [&](std::size_t i, std::size_t begin) { return xs[i].as<const T>() + begin; };
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    if (xs.size() == 2) return add_piece(at(0, begin), at(1, begin), y + begin, end - begin);
    float sums[1024];
    for (std::size_t i = begin; i < end; i += std::size(sums)) {
      const std::size_t size = std::min(std::size(sums), end - i);
      convert_piece(at(0, i), sums, size);
      for (std::size_t k = 1; k < xs.size(); ++k) add_to_piece(sums, at(k, i), size);
      convert_piece(static_cast<const float*>(sums), y + i, size);
    }
  });
}

template <Stored From, Stored To>
void convert(const From* x, To* y, std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    convert_piece(x + begin, y + begin, end - begin);
  });
}

void copy(const void* x, void* y, std::size_t bytes) {
  if (x == y) return;
  constexpr std::size_t unit = sizeof(float);  // pieces are of so many elements
  in_pieces((bytes + unit - 1) / unit, [&](std::size_t begin, std::size_t end) {
    const std::size_t first = begin * unit, last = std::min(end * unit, bytes);
    std::memcpy(static_cast<char*>(y) + first, static_cast<const char*>(x) + first, last - first);
  });
}

template <Stored T>
void dropout(const DropoutMask& mask, float scale, const Shape& whole, const Box& box, const T* x,
             T* y) {
  in_pieces(std::size_t(box.size()), [&](std::size_t begin, std::size_t end) {
    const Part piece{std::int64_t(begin), std::int64_t(end - begin)};
    for_runs(box, piece, Box::of(whole), box,
             [&](std::int64_t at, std::int64_t first, std::int64_t length) {
               dropout_run(mask, std::uint64_t(at), scale, x + first, y + first,
                           std::size_t(length));
             });
  });
}

void update(const UpdateRule& rule, const UpdateStep& step, float* w, const float* dw,
            float* const* states, BF16* rounded, std::size_t n) {
  const bool past = past_caches(n * (2 + std::size_t(rule.states())) * sizeof *w, rounded);
  // Blocks are still in the first cache when they are rounded.
  constexpr std::size_t block = 256, ahead = 2 * block * sizeof *w;
  const auto fetch = [](const float* from) {
    for (std::size_t at = 0; at < block * sizeof *from; at += 64) fetch_ahead(from, ahead + at);
  };
  const auto in_blocks = [&](const auto& piece) {
    in_pieces(n, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; i += block) {
        fetch(w + i), fetch(dw + i);
        for (int k = 0; k < rule.states(); ++k) fetch(states[k] + i);
        const std::size_t size = std::min(block, end - i);
        piece(i, size);
        if (rounded)
          (past ? round_past_piece : convert_piece<float, BF16>)(w + i, rounded + i, size);
      }
      if (rounded && past) finish_puts();
    });
  };
  if (rule.kind == UpdateRule::Kind::sgd) {
    const Sgd s{.rate = float(step.rate),
                .decay = float(step.weight_decay),
                .scale = float(step.grad_scale),
                .momentum = float(rule.momentum)};
    return in_blocks([&](std::size_t i, std::size_t size) {
      if (rule.states() == 0) return sgd_piece(s, w + i, dw + i, size);
      const auto piece = rule.nesterov ? nesterov_piece : momentum_piece;
      piece(s, w + i, dw + i, states[0] + i, size);
    });
  }
  const bool decoupled = rule.kind == UpdateRule::Kind::adamw;
  const double t = double(step.step);
  const Adam a{.rate = float(step.rate / (1 - std::pow(rule.beta1, t))),
               .l2 = decoupled ? 0 : float(step.weight_decay),
               .shrink = decoupled ? float(1 - step.rate * step.weight_decay) : 1,
               .scale = float(step.grad_scale),
               .beta1 = float(rule.beta1),
               .beta2 = float(rule.beta2),
               .new1 = float(1 - rule.beta1),
               .new2 = float(1 - rule.beta2),
               .root = float(1 / std::sqrt(1 - std::pow(rule.beta2, t))),
               .epsilon = float(rule.epsilon)};
  in_blocks([&](std::size_t i, std::size_t size) {
    adam_piece(a, w + i, dw + i, states[0] + i, states[1] + i, size);
  });
}

template <Stored T>
double squared_norm(const T* x, std::size_t n) {
  // A number of pieces that depends on n alone, and no more than fit on the stack.
  constexpr std::size_t most = 256, least = 8192;
  const std::size_t pieces = std::clamp((n + least - 1) / least, std::size_t(1), most);
  const std::size_t size = (n + pieces - 1) / pieces;
  double partial[most];
#pragma omp parallel for schedule(static) if (n > parallel_elements)
  for (std::ptrdiff_t i = 0; i < std::ptrdiff_t(pieces); ++i) {
    const std::size_t begin = std::min(std::size_t(i) * size, n);
    partial[i] = squares(x + begin, std::min(size, n - begin));
  }
  double sum = 0;
  for (std::size_t i = 0; i < pieces; ++i) sum += partial[i];
  return sum;
}

#define LAMINA_STORED(T)                                                                    \
  template void leaky_relu(const T*, float, T*, std::size_t);                               \
  template void leaky_relu_grad(const T*, const T*, float, T*, std::size_t);                \
  template void finish(T*, const T*, float, std::size_t);                                   \
  template void add(std::span<const View>, T*, std::size_t);                                \
  template void dropout(const DropoutMask&, float, const Shape&, const Box&, const T*, T*); \
  template double squared_norm(const T*, std::size_t);
LAMINA_STORED(float)
LAMINA_STORED(BF16)
#undef LAMINA_STORED
template void convert(const float*, BF16*, std::size_t);
template void convert(const BF16*, float*, std::size_t);

}  // namespace lamina::detail
