// GlobalAvgPool: the mean of each channel of each sample.
#pragma once

#include <lamina/layers/pool.hpp>

namespace lamina {

/// y[n,c] = mean_{h,w} x[n,c,h,w];  dx = dy / (h w)
///
/// split            forward         backward
/// batch, channel
/// height, width    all-reduce y
///
/// Ranks that differ in height and width alone have copies of y, and of dy.
class GlobalAvgPool final : public PoolLayer {
 public:
  struct Options {};
  explicit GlobalAvgPool(Options) {}

  std::string_view type() const override { return "GlobalAvgPool"; }

  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override {
    return Blocks::of(output(xs), split, Axis::batch | Axis::channel, ranks);
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape part = split.of_output(only(xs));
    if (xs[0].h * xs[0].w == 1) return {};
    const double x = double(part.size()), y = double(part.n * part.c), s = double(size_of(t));
    Cost cost{.forward = {x, s * (x + y)}, .input_grad = {x, s * (x + y)}};
    if (const int ranks = split.height * split.width; ranks > 1)
      cost.messages = {{Collective::all_reduce, Pass::forward, s * y, ranks}};
    return cost;
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    sums_ = site.along(Axis::height | Axis::width);
    if (sums_.size() == 1) return PoolLayer::place(xs, site);
    // What other ranks have counts as padding here, so that the parts of the mean add up.
    const Shape &whole = xs[0].whole, &x = xs[0].shape;
    PoolGeometry g = geometry(whole);
    g.pad = {0, 0, whole.h - x.h, whole.w - x.w};
    g.count_padding = true;
    auto kernel = site.backend().pool(g, xs[0]);
    if (!agree(sums_, kernel->output)) kernel = site.backend().pool(g, {x, xs[0].dtype, {}});
    return finish(site, std::move(kernel));
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    PoolLayer::forward(context, xs, y);
    sums_.all_reduce(context.stream, Pass::forward, y).wait(context.stream);
  }

 protected:
  PoolGeometry geometry(const Shape& x) const override {
    return {PoolGeometry::Kind::average, {x.h, x.w}, {x.h, x.w}};
  }

 private:
  Communicator sums_;  // ranks that each have a part of the mean
};

}  // namespace lamina
