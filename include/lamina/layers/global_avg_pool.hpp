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

  /// Where rows or columns are cut, parts of the mean add up instead.
  Axis halo_axes() const override { return Axis::none; }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 protected:
  PoolGeometry geometry(const Shape& x) const override {
    return {PoolGeometry::Kind::average, {x.h, x.w}, {x.h, x.w}};
  }

 private:
  struct Placed;
  /// Ranks that differ along these each have a part of the mean.
  static constexpr Axis sum_axes = Axis::height | Axis::width;
};

/// Where rows or columns are cut.
struct GlobalAvgPool::Placed final : PlacedUnary {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    PlacedUnary::forward(context, xs, y);
    sums.all_reduce(context.stream, Pass::forward, y).wait(context.stream);
  }

  Communicator sums;  ///< ranks that each have a part of the mean
};

}  // namespace lamina
