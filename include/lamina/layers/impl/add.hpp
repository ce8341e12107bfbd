// How sums are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/add.hpp>

namespace lamina {

LAMINA_INLINE Shape Add::output(std::span<const Shape> xs) const {
  check(xs.size() >= 2, "expected at least two inputs, got ", xs.size());
  for (const Shape& x : xs)
    check(x == xs[0], "expected inputs of one shape, got ", xs[0], " and ", x);
  return xs[0];
}

LAMINA_INLINE Cost Add::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const double n = double(split.of_output(xs[0]).size()), k = double(xs.size());
  return {.forward = {(k - 1) * n, (k + 1) * double(size_of(t)) * n}};
}

LAMINA_INLINE Placement Add::place(std::span<const Spec> xs, const Site& site) const {
  auto placed = std::make_unique<Placed>();
  placed->kernel = site.backend().sum(std::vector<Form>(xs.begin(), xs.end()));
  Placement p = placement_of(*placed->kernel);
  p.reads_x = false, p.passes_gradient = true;
  p.in_place = p.output == p.inputs[0];
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
