// PadChannels: zero channels behind those of x; with a strided AvgPool2D of window 1, the shortcut
// without parameters of He et al. (2016), section 3.3, option A.
#pragma once

#include <lamina/layers/layer.hpp>

#include <array>

namespace lamina {

/// y = [x, 0] along c;  dx is the first channels of dy. Sends nothing under any split: where the
/// channels of y are cut, a rank takes those of x that are among its own, maybe none; the network
/// reshards x accordingly.
class PadChannels final : public Layer {
 public:
  struct Options {
    std::int64_t channels = 0;  ///< of y
  };
  explicit PadChannels(Options o);

  std::string_view type() const override { return "PadChannels"; }
  std::string describe() const override { return text(o_.channels); }

  Shape output(std::span<const Shape> xs) const override;

  Axis splits() const override { return all_but_input; }
  Blocks input_blocks(std::size_t, std::span<const Shape> xs, const Split& split,
                      int ranks) const override {
    return output_blocks(xs, split, ranks).of_channels({0, only(xs).c});
  }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 private:
  struct Placed;
  Options o_;
};

struct PadChannels::Placed final : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel->forward(context.stream, some(xs[0], zeros), y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) kernel->input_grad(context.stream, dy, some(dxs[0], {}));
  }

  /// Of the two, what this rank has in y.
  std::span<const View> some(const View& x, const View& rest) {
    both = {x, rest};
    return std::span(both).subspan(has_x ? 0 : 1, kernel->inputs.size());
  }

  std::unique_ptr<NaryKernel> kernel;
  bool has_x = true;
  Tensor zeros;
  std::array<View, 2> both;
};

}  // namespace lamina
