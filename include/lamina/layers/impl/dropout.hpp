// How dropout is placed, and what it costs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/dropout.hpp>

namespace lamina {

LAMINA_INLINE Dropout::Dropout(Options o) : o_(o) {
  check(o_.rate >= 0 && o_.rate < 1, "rate must be in [0, 1), got ", o_.rate);
}

LAMINA_INLINE Cost Dropout::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const double n = double(split.of_output(only(xs)).size());
  const Work once{n, 2 * double(size_of(t)) * n};
  return {.forward = once, .input_grad = once};
}

LAMINA_INLINE Placement Dropout::place(std::span<const Spec> xs, const Site& site) const {
  auto placed = std::make_unique<Placed>();
  placed->kernel = site.backend().dropout(o_.rate, xs[0], xs[0].whole, xs[0].box);
  Placement p = placement_of(*placed->kernel);
  placed->copy = site.backend().reorder(p.inputs[0], p.output);
  p.reads_x = false, p.in_place = true;
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
