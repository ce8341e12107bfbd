// PoolLayer: what MaxPool2D, AvgPool2D and GlobalAvgPool share.
#pragma once

#include <lamina/layers/unary.hpp>

#include <array>

namespace lamina {

/// A derived layer gives its geometry for an input. A window that is one element, at every
/// position, is the identity: y is then x itself and nothing runs.
///
/// split            forward        backward
/// batch, channel
/// height, width    halo of x      halo of dx
///
/// A window that is cut between ranks is whole on the rank that has its y; only at the border of
/// the image is there padding.
class PoolLayer : public UnaryLayer {
 public:
  Shape output(std::span<const Shape> xs) const override;
  Axis halo_axes() const override { return Axis::height | Axis::width; }
  Blocks halo_blocks(std::span<const Shape> xs, const Split& split) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 protected:
  virtual PoolGeometry geometry(const Shape& x) const = 0;

  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.pool(geometry(x.shape), x);
  }

  static std::string describe(Pair window, Pair stride, Pad pad);

 private:
  static bool identity(const PoolGeometry& g) {
    return g.window == Pair(1) && g.stride == Pair(1) && g.pad == Pad(0);
  }

  /// Rows and columns that the windows of a block of y reach. An axis that is not cut is there as a
  /// whole, also where a stride leaves some of it unused.
  static std::array<Reach, 2> reached(const PoolGeometry& g, const Shape& x, const Box& y);
};

}  // namespace lamina
