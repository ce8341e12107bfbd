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
class Reshard final : public Layer {
 public:
  Reshard(Blocks held, Blocks wanted) : held_(std::move(held)), wanted_(std::move(wanted)) {}

  std::string_view type() const override { return "Reshard"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Blocks input_blocks(std::size_t, std::span<const Shape>, const Split&, int) const override {
    return held_;
  }
  Blocks output_blocks(std::span<const Shape>, const Split&, int) const override { return wanted_; }

  /// Of the ranks that get the most.
  Cost cost(std::span<const Shape>, const Split&, DType t) const override {
    const auto largest = [](const Blocks& blocks) {
      std::int64_t most = 0;
      for (const Box& b : blocks.box) most = std::max(most, b.size());
      return double(most);
    };
    const Work copy{.bytes = double(size_of(t)) * (largest(held_) + largest(wanted_))};
    return {.forward = copy,
            .input_grad = copy,
            .messages = {{Collective::halo, Pass::forward,
                          Exchange::most_received(held_, wanted_, t), held_.ranks(), false},
                         {Collective::halo, Pass::input_grad,
                          Exchange::most_received(wanted_, held_, t), held_.ranks(), false}}};
  }

  /// On all ranks: those that hold or want nothing take part, too. Wants a plain input.
  Placement place(std::span<const Spec> xs, const Site& site) override {
    const Form x{xs[0].shape, xs[0].dtype, {}};
    forward_ = Exchange(held_, wanted_, x.dtype, site.ranks());
    backward_ = Exchange(wanted_, held_, x.dtype, site.ranks());
    Placement p;
    p.output = {wanted_.box[std::size_t(site.ranks().rank())].shape(), x.dtype, {}};
    p.inputs = {x};
    p.reads_x = false;
    p.workspace = p.messages = forward_.workspace() + backward_.workspace();
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    forward_.run(context.stream, Pass::forward, xs[0], y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    backward_.run(context.stream, Pass::input_grad, dy, dxs[0]);
  }

 private:
  Blocks held_, wanted_;
  Exchange forward_, backward_;
};

}  // namespace lamina
