// The arithmetic of an update's numbers: clipping and LARS.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/step_values.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

LAMINA_INLINE UpdateStep UpdateStep::resolved() const {
  UpdateStep s{rate, weight_decay, grad_scale, step};
  if (values) {
    const auto& now = Passed<UpdateValues>::in(values);
    s.rate *= now.rate, s.grad_scale *= now.scale, s.step = std::int64_t(now.step);
  }
  if (found) s.grad_scale *= samples / std::max(found.as<double>()[3], 1.0);
  if (squares) {
    double sum = 0;
    for (const double square : squares.elements<double>()) sum += square;
    const double norm = s.grad_scale * std::sqrt(sum);
    if (norm > clip_norm) s.grad_scale *= clip_norm / norm;
  }
  if (value_square) {
    const double w = std::sqrt(*value_square.as<double>());
    const double dw = s.grad_scale * std::sqrt(*grad_square.as<double>());
    const double below = dw + s.weight_decay * w;
    const double local = w > 0 && below > 0 ? trust * w / below : 1;
    s.weight_decay *= local, s.grad_scale *= local;
  }
  return s;
}

}  // namespace lamina
