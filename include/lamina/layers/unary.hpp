// UnaryLayer: what all layers with one kernel, one input and no parameters share.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// A derived layer gives its kernel, its output shape and its cost; nothing is sent under any split
/// that leaves windows and channels whole.
class UnaryLayer : public Layer {
 public:
  Shape output(std::span<const Shape> xs) const override { return only(xs); }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = make(site.backend(), xs[0]);
    Placement p = placed(*kernel_);
    p.reads_x = kernel_->reads_x, p.reads_y = kernel_->reads_y, p.in_place = kernel_->in_place;
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, xs[0], y);
  }

  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) kernel_->input_grad(context.stream, xs[0], y, dy, dxs[0]);
  }

 protected:
  virtual std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const = 0;

  /// Of an element-wise layer: FLOP per element and tensors moved, forward and backward.
  static Cost per_element(const Shape& x, DType t, double flops, double back_flops) {
    const double n = double(x.size()), s = double(size_of(t));
    return {.forward = {flops * n, 2 * s * n}, .input_grad = {back_flops * n, 3 * s * n}};
  }

 private:
  std::unique_ptr<UnaryKernel> kernel_;
};

}  // namespace lamina
