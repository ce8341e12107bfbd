// UnaryLayer: what all layers with one kernel, one input and no parameters share.
#pragma once

#include <lamina/layers/halo.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

struct PlacedUnary;

/// A derived layer gives its kernel, its output shape and its cost. An element-wise layer sends
/// nothing under any split; one whose kernel reads elements of neighbours places a halo.
class UnaryLayer : public Layer {
 public:
  Shape output(std::span<const Shape> xs) const override { return only(xs); }

  Axis splits() const override { return all_but_input; }

  Placement place(std::span<const Spec> xs, const Site& site) const override;

 protected:
  /// For an x of this form: this rank's block, or what the halo makes of it.
  virtual std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const = 0;

  /// To be called by place(), with the halo made and a kernel for halo.x(xs[0]).
  static Placement finish(const Site& site, std::unique_ptr<PlacedUnary> placed);

  /// Of an element-wise layer: FLOP per element and tensors moved, forward and backward.
  static Cost per_element(const Shape& x, DType t, double flops, double back_flops) {
    const double n = double(x.size()), s = double(size_of(t));
    return {.forward = {flops * n, 2 * s * n}, .input_grad = {back_flops * n, 3 * s * n}};
  }
};

/// What runs of a UnaryLayer.
struct PlacedUnary : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel->forward(context.stream, halo.gather(context.stream, xs[0]), y);
  }

  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (!dxs[0]) return;
    kernel->input_grad(context.stream, halo.kept(xs[0]), y, dy, halo.gradient(dxs[0]));
    halo.fold(context.stream, dxs[0]);
  }

  std::unique_ptr<UnaryKernel> kernel;
  Halo halo;
};

}  // namespace lamina
