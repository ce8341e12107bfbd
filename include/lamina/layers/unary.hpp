// UnaryLayer: what all layers with one kernel, one input and no parameters share.
#pragma once

#include <lamina/layers/halo.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

/// A derived layer gives its kernel, its output shape and its cost. An element-wise layer sends
/// nothing under any split; one whose kernel reads elements of neighbours places a halo.
class UnaryLayer : public Layer {
 public:
  Shape output(std::span<const Shape> xs) const override { return only(xs); }

  Axis splits() const override { return all_but_input; }

  Placement place(std::span<const Spec> xs, const Site& site) override;

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, halo_.gather(context.stream, xs[0]), y);
  }

  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (!dxs[0]) return;
    kernel_->input_grad(context.stream, halo_.kept(xs[0]), y, dy, halo_.gradient(dxs[0]));
    halo_.fold(context.stream, dxs[0]);
  }

 protected:
  /// For an x of this form: this rank's block, or what the halo makes of it.
  virtual std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const = 0;

  /// To be called by place(), with the halo made and a kernel for halo_.x(xs[0]).
  Placement finish(const Site& site, std::unique_ptr<UnaryKernel> kernel);

  /// Of an element-wise layer: FLOP per element and tensors moved, forward and backward.
  static Cost per_element(const Shape& x, DType t, double flops, double back_flops) {
    const double n = double(x.size()), s = double(size_of(t));
    return {.forward = {flops * n, 2 * s * n}, .input_grad = {back_flops * n, 3 * s * n}};
  }

  std::unique_ptr<UnaryKernel> kernel_;
  Halo halo_;
};

}  // namespace lamina
