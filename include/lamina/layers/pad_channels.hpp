// PadChannels: zero channels behind those of x; with a strided AvgPool2D of window 1, the shortcut
// without parameters of He et al. (2016), section 3.3, option A.
#pragma once

#include <lamina/layers/layer.hpp>

#include <array>

namespace lamina {

/// y = [x, 0] along c;  dx is the first channels of dy. Sends nothing: its channels are not cut, as
/// the parts of y would not be where those of x are.
class PadChannels final : public Layer {
 public:
  struct Options {
    std::int64_t channels = 0;  ///< of y
  };
  explicit PadChannels(Options o) : o_(o) {
    check(o_.channels > 0, "channels must be positive, got ", o_.channels);
  }

  std::string_view type() const override { return "PadChannels"; }
  std::string describe() const override { return text(o_.channels); }
  Axis splits() const override { return Axis::batch | Axis::height | Axis::width; }

  Shape output(std::span<const Shape> xs) const override {
    const Shape& x = only(xs);
    check(x.c < o_.channels, "expected less than ", o_.channels, " channels, got input ", x);
    return {x.n, o_.channels, x.h, x.w};
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double x = double(split.of_output(only(xs)).size()), s = double(size_of(t));
    const double y = double(split.of_output(output(xs)).size());
    return {.forward = {.bytes = s * (x + y)}, .input_grad = {.bytes = 2 * s * x}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    Form zeros = xs[0];
    zeros.shape.c = o_.channels - zeros.shape.c, zeros.layout = {};
    kernel_ = site.backend().concat(std::vector<Form>{xs[0], zeros});
    zeros_ = Tensor(kernel_->inputs[1]);  // zero in any layout
    Placement p = placed(*kernel_);
    p.inputs.resize(1), p.reads_x = false, p.workspace += zeros_.bytes();
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, std::array<View, 2>{xs[0], zeros_}, y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) kernel_->input_grad(context.stream, dy, std::array<View, 2>{dxs[0], View()});
  }

 private:
  Options o_;
  std::unique_ptr<NaryKernel> kernel_;
  Tensor zeros_;
};

}  // namespace lamina
