// Conv2D: two-dimensional convolution with groups, dilation, stride and asymmetric padding.
#pragma once

#include <lamina/layers/weighted.hpp>

namespace lamina {

/// y[n,k,p,q] = b[k] + sum_{c,r,s} w[k,c,r,s] x[n, c, p*stride + r*dilation - pad,
///                                              q*stride + s*dilation - pad]
///
/// weighted.hpp says what each split sends. With groups, `channel` cuts them: a rank has whole
/// ones, with their channels of x and y. Rows of y that need no halo are computed while it travels
/// (edge.hpp); not under a split by width.
class Conv2D final : public WeightedLayer {
 public:
  struct Options {
    std::int64_t channels = 0;  ///< of y
    Pair kernel = 1, stride = 1;
    Pad pad = 0;
    Pair dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
    /// Weights start normal with variance 2/(fan out) (He et al., 2015) if set, else uniform within
    /// +-1/sqrt(fan in); the bias uniform within the same bound.
    bool he_normal = false;
  };

  explicit Conv2D(Options o);

  /// Of the whole layer.
  ConvGeometry geometry() const {
    return {o_.channels, o_.kernel, o_.stride, o_.pad, o_.dilation, o_.groups, o_.bias};
  }

  std::string_view type() const override { return "Conv2D"; }
  std::string describe() const override;
  std::string options() const override;
  Shape output(std::span<const Shape> xs) const override;

  Axis splits() const override;
  std::int64_t cut_channels(std::span<const Shape>) const override {
    return o_.groups > 1 ? o_.groups : o_.channels;
  }
  std::string_view limit(Axis axis, std::span<const Shape>) const override;
  void check_split(std::span<const Shape> xs, const Split& split, bool training) const override;
  Blocks input_blocks(std::size_t i, std::span<const Shape> xs, const Split& split,
                      int ranks) const override;
  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override;
  Axis halo_axes() const override { return Axis::height | Axis::width; }
  Blocks halo_blocks(std::span<const Shape> xs, const Split& split) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place_with(const Epilogue& e, std::span<const Spec> xs,
                       const Site& site) const override;

 protected:
  Fusible kernel() const override { return Fusible::conv; }
  bool has_bias() const override { return o_.bias; }
  /// With groups, the channels of x go with those of y.
  Axis input_axes() const override {
    return Axis::batch | Axis::height | Axis::width | (o_.groups > 1 ? Axis::channel : Axis::input);
  }

 private:
  /// With groups: of x or y, those channels that belong to a rank's groups.
  Blocks of_groups(const Shape& whole, const Split& split, int ranks) const;

  /// The rows `y` of a block whose windows see other ranks' rows of `x`: a kernel of its own for
  /// the first and for the last ones. `g` is the geometry of the block, `h` all rows of x.
  void place_edges(const Backend& backend, const Epilogue& e, ConvGeometry g, Part y, Part x,
                   std::int64_t h, PlacedWeighted& placed, Placement& p) const;

  /// A whole axis keeps its own padding; also where a stride leaves some of it unused.
  Reach reach_rows(Part y, std::int64_t h) const;
  Reach reach_columns(Part y, std::int64_t w) const;
  std::int64_t output_rows(std::int64_t h) const;
  std::int64_t output_columns(std::int64_t w) const;

  /// The part of the multiplications that is not with zeros around x.
  double inside(const Shape& x, const Shape& y) const;

  Options o_;
};

}  // namespace lamina
