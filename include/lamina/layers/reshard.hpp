// Reshard: the same values, cut among the ranks in another way. The network inserts it between
// layers whose splits do not fit.
#pragma once

#include <lamina/layers/exchange.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = x;  each rank sends just what it has and another one needs, forward and backward.
///
/// forward                        backward
/// to each its wanted block       to each the gradient of the block it gave
///
/// All ranks of the network take part, whatever the splits before and behind it: its own split,
/// with which it is placed and its cost is stated, is {.batch = ranks}.
class Reshard final : public Layer {
 public:
  Reshard(Blocks held, Blocks wanted) : held_(std::move(held)), wanted_(std::move(wanted)) {}

  std::string_view type() const override { return "Reshard"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Blocks input_blocks(std::size_t, std::span<const Shape>, const Split&, int) const override {
    return held_;
  }
  Blocks output_blocks(std::span<const Shape>, const Split&, int) const override { return wanted_; }

  /// Of the ranks that hold, get and send the most.
  Cost cost(std::span<const Shape>, const Split&, DType t) const override;

  /// On all ranks: those that hold or want nothing take part, too. Wants a plain input.
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 private:
  struct Placed;
  Blocks held_, wanted_;
};

struct Reshard::Placed final : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    there.run(context.stream, Pass::forward, xs[0], y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    back.run(context.stream, Pass::input_grad, dy, dxs[0]);
  }

  Exchange there, back;
};

}  // namespace lamina
