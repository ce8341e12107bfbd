// Flatten: {n, c, h, w} seen as {n, c*h*w, 1, 1}. Costs nothing where x lies plain.
#pragma once

#include <lamina/layers/alias.hpp>

namespace lamina {

/// y[n, (c*H + h)*W + w] = x[n,c,h,w]. Sends nothing under a split of samples or channels: a rank's
/// part of y is its whole channels of x. (Linear needs none: it takes an input of any height and
/// width.)
class Flatten final : public Layer {
 public:
  struct Options {};
  explicit Flatten(Options) {}

  std::string_view type() const override { return "Flatten"; }
  Shape output(std::span<const Shape> xs) const override {
    return {only(xs).n, xs[0].sample(), 1, 1};
  }

  Axis splits() const override { return Axis::batch | Axis::channel; }
  std::int64_t cut_channels(std::span<const Shape> xs) const override { return xs[0].c; }
  std::string_view limit(Axis axis, std::span<const Shape> xs) const override {
    if (axis == Axis::channel) return "a part of y is whole channels of x";
    return axis == Axis::input ? Layer::limit(axis, xs) : "its output has no rows or columns";
  }
  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override {
    Blocks blocks = input_blocks(0, xs, split, ranks);
    blocks.whole = output(xs);
    const std::int64_t plane = xs[0].h * xs[0].w;
    for (Box& b : blocks.box)
      if (!b.empty()) b.c = {b.c.begin * plane, b.c.size * plane}, b.h = b.w = {0, 1};
    return blocks;
  }
  Cost cost(std::span<const Shape> xs, const Split&, DType) const override {
    only(xs);
    return {};
  }

  /// Wants a plain input; the network reorders another one first.
  Placement place(std::span<const Spec> xs, const Site&) const override {
    const Form x{xs[0].shape, xs[0].dtype, {}};
    return place_alias(x, {{x.shape.n, x.shape.sample(), 1, 1}, x.dtype, {}});
  }
};

}  // namespace lamina
