// The operations as their formulas say, one element after the other: what the reference kernels are
// compared with.
#pragma once

#include "support/operands.hpp"

#include <optional>

namespace lamina::test::naive {

using Index = std::int64_t;

inline Index at(Shape s, Index n, Index c, Index h, Index w) {
  return ((n * s.c + c) * s.h + h) * s.w + w;
}

/// The element, or nothing in the padding.
inline std::optional<double> inside(const Values& x, Shape s, Index n, Index c, Index h, Index w) {
  if (h < 0 || h >= s.h || w < 0 || w >= s.w) return {};
  return x[at(s, n, c, h, w)];
}

/// Calls f(n, c, h, w) for all elements in order.
template <class F>
void each(Shape s, F&& f) {
  for (Index n = 0; n < s.n; ++n) {
    for (Index c = 0; c < s.c; ++c) {
      for (Index h = 0; h < s.h; ++h) {
        for (Index w = 0; w < s.w; ++w) f(n, c, h, w);
      }
    }
  }
}

inline Values conv(const ConvGeometry& g, Shape xs, const Values& x, const Values& w,
                   const Values& b) {
  Values y;
  const Shape ws = g.weight(xs);
  each(g.output(xs), [&](Index n, Index k, Index p, Index q) {
    double sum = g.bias ? b[k] : 0;
    const Index first = k / (g.channels / g.groups) * ws.c;
    each({1, ws.c, ws.h, ws.w}, [&](Index, Index c, Index r, Index s) {
      const Index h = p * g.stride.h + r * g.dilation.h - g.pad.top;
      const Index v = q * g.stride.w + s * g.dilation.w - g.pad.left;
      sum += w[at(ws, k, c, r, s)] * inside(x, xs, n, first + c, h, v).value_or(0);
    });
    y.push_back(sum);
  });
  return y;
}

inline Values linear(Shape xs, Index features, const Values& x, const Values& w, const Values& b) {
  Values y;
  for (Index n = 0; n < xs.n; ++n) {
    for (Index k = 0; k < features; ++k) {
      double sum = b.empty() ? 0 : b[k];
      for (Index c = 0; c < xs.sample(); ++c)
        sum += x[n * xs.sample() + c] * w[k * xs.sample() + c];
      y.push_back(sum);
    }
  }
  return y;
}

inline Values pool(const PoolGeometry& g, Shape xs, const Values& x) {
  Values y;
  each(g.output(xs), [&](Index n, Index c, Index p, Index q) {
    double sum = 0, top = -INFINITY, count = 0;
    each({1, 1, g.window.h, g.window.w}, [&](Index, Index, Index r, Index s) {
      const auto v =
          inside(x, xs, n, c, p * g.stride.h + r - g.pad.top, q * g.stride.w + s - g.pad.left);
      sum += v.value_or(0);
      top = std::max(top, v.value_or(-INFINITY));
      count += v || g.count_padding ? 1 : 0;
    });
    y.push_back(g.kind == PoolGeometry::Kind::max ? top : sum / count);
  });
  return y;
}

inline Values lrn(const LrnGeometry& g, Shape xs, const Values& x) {
  Values y;
  each(xs, [&](Index n, Index c, Index h, Index w) {
    double sum = 0;
    for (Index j = 0; j < xs.c; ++j) {
      if (2 * std::abs(j - c) < g.size) sum += std::pow(x[at(xs, n, j, h, w)], 2);
    }
    y.push_back(x[at(xs, n, c, h, w)] / std::pow(g.k + g.alpha / double(g.size) * sum, g.beta));
  });
  return y;
}

inline Values softmax(Shape xs, const Values& x) {
  Values y;
  each(xs, [&](Index n, Index c, Index h, Index w) {
    double sum = 0;
    for (Index j = 0; j < xs.c; ++j) sum += std::exp(x[at(xs, n, j, h, w)]);
    y.push_back(std::exp(x[at(xs, n, c, h, w)]) / sum);
  });
  return y;
}

inline Values batch_norm(Shape xs, double epsilon, const Values& x, const Values& w,
                         const Values& b) {
  Values y(x.size());
  const double m = double(xs.size() / xs.c);
  for (Index c = 0; c < xs.c; ++c) {
    double mean = 0, var = 0;
    const Shape one{xs.n, 1, xs.h, xs.w};
    each(one, [&](Index n, Index, Index h, Index v) { mean += x[at(xs, n, c, h, v)] / m; });
    each(one, [&](Index n, Index, Index h, Index v) {
      var += std::pow(x[at(xs, n, c, h, v)] - mean, 2) / m;
    });
    each(one, [&](Index n, Index, Index h, Index v) {
      const Index i = at(xs, n, c, h, v);
      y[i] = (x[i] - mean) / std::sqrt(var + epsilon) * (w.empty() ? 1 : w[c]) +
             (b.empty() ? 0 : b[c]);
    });
  }
  return y;
}

/// The sum over the rows; rows with a label below zero do not count.
inline double cross_entropy(Index classes, double smoothing, const Values& x,
                            const std::vector<int>& labels) {
  double loss = 0;
  const Values p = softmax({Index(labels.size()), classes, 1, 1}, x);
  for (std::size_t n = 0; n < labels.size(); ++n) {
    for (Index k = 0; k < classes && labels[n] >= 0; ++k) {
      const double target = (1 - smoothing) * (k == labels[n]) + smoothing / double(classes);
      loss -= target * std::log(p[n * classes + k]);
    }
  }
  return loss;
}

}  // namespace lamina::test::naive
