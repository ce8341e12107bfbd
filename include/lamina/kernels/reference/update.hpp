// Reference update rules and sums of squares, element by element, with the arithmetic in f64.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>

namespace lamina::detail {

/// g = grad_scale dw + weight_decay w;  v = momentum v + g;  w -= rate (v, or g + momentum v).
template <class T, class G>
void reference_sgd(const UpdateRule& rule, const UpdateStep& at, const View& w, const View& dw,
                   T* velocity) {
  for (Index i = 0; i < w.shape.size(); ++i) {
    double g = at.grad_scale * dw.as<G>()[i] + at.weight_decay * w.as<T>()[i];
    if (velocity) {
      const double v = rule.momentum * velocity[i] + g;
      velocity[i] = T(v);
      g = rule.nesterov ? g + rule.momentum * v : v;
    }
    w.as<T>()[i] = T(w.as<T>()[i] - at.rate * g);
  }
}

/// m = beta1 m + (1-beta1) g,  v = beta2 v + (1-beta2) g^2, both divided by 1 - beta^step;
/// w -= rate m / (sqrt(v) + epsilon). Decay joins g in adam, and shrinks w first in adamw.
template <class T, class G>
void reference_adam(const UpdateRule& rule, const UpdateStep& at, const View& w, const View& dw,
                    T* first, T* second) {
  const bool decoupled = rule.kind == UpdateRule::Kind::adamw;
  const double correct1 = 1 - std::pow(rule.beta1, double(at.step));
  const double correct2 = 1 - std::pow(rule.beta2, double(at.step));
  for (Index i = 0; i < w.shape.size(); ++i) {
    double value = w.as<T>()[i], g = at.grad_scale * dw.as<G>()[i];
    if (decoupled) {
      value -= at.rate * at.weight_decay * value;
    } else {
      g += at.weight_decay * value;
    }
    const double m = rule.beta1 * first[i] + (1 - rule.beta1) * g;
    const double v = rule.beta2 * second[i] + (1 - rule.beta2) * g * g;
    first[i] = T(m);
    second[i] = T(v);
    const double step = m / correct1 / (std::sqrt(v / correct2) + rule.epsilon);
    w.as<T>()[i] = T(value - at.rate * step);
  }
}

inline void reference_update(const UpdateRule& rule, const UpdateStep& at, const View& w,
                             const View& dw, std::span<const View> states) {
  visit(w.dtype, [&]<std::floating_point T>(T) {
    visit(dw.dtype, [&]<Floating G>(G) {
      if (rule.kind == UpdateRule::Kind::sgd) {
        reference_sgd<T, G>(rule, at, w, dw, states.empty() ? nullptr : states[0].as<T>());
      } else {
        reference_adam<T, G>(rule, at, w, dw, states[0].as<T>(), states[1].as<T>());
      }
    });
  });
}

inline double reference_squared_norm(const View& x) {
  double total = 0;
  visit(x.dtype, [&]<Floating T>(T) {
    for (const double v : x.elements<const T>()) total += v * v;
  });
  return total;
}

}  // namespace lamina::detail
