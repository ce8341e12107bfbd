// Elementwise loops of the CPU back end: activation, sum, dropout, optimizer step, norm.
#include "cpu/blocked.hpp"
#include "cpu/simd.hpp"

#include <cmath>
#include <cstring>

namespace lamina::detail {
namespace {

LAMINA_SIMD void leaky_relu_piece(const float* x, float slope, float* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? slope * x[i] : x[i];
}

LAMINA_SIMD void leaky_relu_grad_piece(const float* r, const float* dy, float slope, float* dx,
                                       std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) dx[i] = r[i] <= 0 ? slope * dy[i] : dy[i];
}

// Without a slope the product is left out: 0 * infinity would not be 0.
LAMINA_SIMD void relu_piece(const float* x, float* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

LAMINA_SIMD void relu_grad_piece(const float* r, const float* dy, float* dx, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) dx[i] = r[i] <= 0 ? 0 : dy[i];
}

LAMINA_SIMD void add_piece(const float* x1, const float* x2, float* y, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) y[i] = x1[i] + x2[i];
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
LAMINA_SIMD double squares(const float* x, std::size_t n) {
  double lanes[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
#pragma omp simd
    for (int l = 0; l < 16; ++l) lanes[l] += double(x[i + l]) * double(x[i + l]);
  }
  for (; i < n; ++i) lanes[0] += double(x[i]) * double(x[i]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void leaky_relu(const float* x, float slope, float* y, std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    if (slope == 0) return relu_piece(x + begin, y + begin, end - begin);
    leaky_relu_piece(x + begin, slope, y + begin, end - begin);
  });
}

void leaky_relu_grad(const float* reference, const float* dy, float slope, float* dx,
                     std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    const std::size_t size = end - begin;
    if (slope == 0) return relu_grad_piece(reference + begin, dy + begin, dx + begin, size);
    leaky_relu_grad_piece(reference + begin, dy + begin, slope, dx + begin, size);
  });
}

void add(const float* x1, const float* x2, float* y, std::size_t n) {
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    add_piece(x1 + begin, x2 + begin, y + begin, end - begin);
  });
}

void copy(const float* x, float* y, std::size_t n) {
  if (x == y) return;
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    std::memcpy(y + begin, x + begin, (end - begin) * sizeof(float));
  });
}

void dropout(const DropoutMask& mask, float scale, const Shape& whole, const Box& box,
             const float* x, float* y) {
  in_pieces(std::size_t(box.size()), [&](std::size_t begin, std::size_t end) {
    const Part piece{std::int64_t(begin), std::int64_t(end - begin)};
    for_runs(box, piece, Box::of(whole), box,
             [&](std::int64_t at, std::int64_t first, std::int64_t length) {
               auto index = std::uint64_t(at);
               for (std::int64_t i = first; i < first + length; ++i, ++index)
                 y[i] = mask.keeps(index) ? x[i] * scale : 0;
             });
  });
}

void update(const UpdateRule& rule, const UpdateStep& step, float* w, const float* dw,
            float* const* states, std::size_t n) {
  if (rule.kind == UpdateRule::Kind::sgd) {
    const Sgd s{.rate = float(step.rate),
                .decay = float(step.weight_decay),
                .scale = float(step.grad_scale),
                .momentum = float(rule.momentum)};
    return in_pieces(n, [&](std::size_t begin, std::size_t end) {
      const std::size_t size = end - begin;
      if (rule.states() == 0) return sgd_piece(s, w + begin, dw + begin, size);
      const auto piece = rule.nesterov ? nesterov_piece : momentum_piece;
      piece(s, w + begin, dw + begin, states[0] + begin, size);
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
  in_pieces(n, [&](std::size_t begin, std::size_t end) {
    adam_piece(a, w + begin, dw + begin, states[0] + begin, states[1] + begin, end - begin);
  });
}

double squared_norm(const float* x, std::size_t n) {
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

}  // namespace lamina::detail
