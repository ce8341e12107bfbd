// How linear layers are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/linear.hpp>

#include <array>
#include <cmath>

namespace lamina {

LAMINA_INLINE Linear::Linear(Options o) : o_(o) {
  check(o_.features > 0, "features must be positive, got ", o_.features);
  check(o_.normal >= 0, "the standard deviation must not be negative, got ", o_.normal);
}

LAMINA_INLINE std::string_view Linear::limit(Axis axis, std::span<const Shape> xs) const {
  if (axis == Axis::height || axis == Axis::width) return "its output has no rows or columns";
  if (axis == Axis::input && xs[0].h * xs[0].w > 1)
    return "its input is cut by whole channels; with a Flatten in front every feature is one";
  return {};
}

LAMINA_INLINE Cost Linear::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const Shape x = split.of_input(only(xs)), y = split.of_output(output(xs));
  return cost_of(x, y, double(y.c) * double(x.sample()), x.size(), split, t);
}

LAMINA_INLINE Placement Linear::place_with(const Epilogue& e, std::span<const Spec> xs,
                                           const Site& site) const {
  const std::array whole{xs[0].whole};
  const Blocks x = input_blocks(0, whole, site.split(), site.split().ways());
  auto placed = std::make_unique<PlacedWeighted>();
  placed->halo = Halo(x, x, xs[0], site, Axis::none);
  const Part features = site.part(Axis::channel, o_.features);
  placed->kernel = site.backend().linear(features.size, wants_bias(e), xs[0], e.unscaled());
  const std::int64_t inputs = xs[0].whole.sample();
  const bool normal = o_.normal > 0;
  const Initial uniform{Initial::Kind::uniform, 1 / std::sqrt(double(inputs))};
  // Weights are counted as those of a convolution as large as x.
  const Shape w{o_.features, xs[0].whole.c, xs[0].whole.h, xs[0].whole.w};
  return finish(e, site, std::move(placed), w, features, {o_.features, inputs},
                normal ? Initial{Initial::Kind::normal, o_.normal} : uniform,
                normal ? Initial{} : uniform);
}

}  // namespace lamina
