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
  explicit PadChannels(Options o);

  std::string_view type() const override { return "PadChannels"; }
  std::string describe() const override { return text(o_.channels); }
  Axis splits() const override { return Axis::batch | Axis::height | Axis::width; }

  Shape output(std::span<const Shape> xs) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) override;

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
