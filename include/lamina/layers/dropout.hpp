// Dropout: in training, zeroes elements at random and scales up the others; else the identity.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = mask x, dx = mask dy;  mask = 0 with probability `rate`, else 1/(1 - rate)
///
/// The mask is a function of the seed, the step, the layer and the element's index in the whole
/// tensor, across all ranks: it does not depend on their number. Sends nothing under any split.
class Dropout final : public Layer {
 public:
  struct Options {
    double rate = 0.5;
  };
  explicit Dropout(Options o);

  std::string_view type() const override { return "Dropout"; }
  std::string describe() const override { return text(o_.rate); }
  std::string options() const override { return exact(o_.rate); }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Axis splits() const override { return all_but_input; }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 private:
  struct Placed;
  Options o_;
};

struct Dropout::Placed final : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    if (context.training)
      apply(context, Pass::forward, xs[0], y);
    else if (y.data != xs[0].data)
      copy->forward(context.stream, xs[0], y);
  }

  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) apply(context, Pass::input_grad, dy, dxs[0]);
  }

  void apply(Context& context, Pass pass, const View& from, const View& to) {
    kernel->apply(context.stream, pass, context.now, context.layer, from, to);
  }

  std::unique_ptr<DropoutKernel> kernel;
  std::unique_ptr<UnaryKernel> copy;  ///< for inference, where y does not lie in place
};

}  // namespace lamina
