// Convolution of an image that is padded beforehand. Below AVX-512 oneDNN takes long windows with
// padding around few channels as products of matrices, which are half as fast as its kernel for
// images that need none, and leave y plain, which pooling takes ten times as long for.
#include "cpu/onednn_core.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

class PaddedConv final : public WeightedKernel {
 public:
  PaddedConv(std::unique_ptr<WeightedKernel> inner, const Pad& pad, const Form& x)
      : WeightedKernel(*inner), inner_(std::move(inner)), pad_(pad), shape_(x.shape) {
    padded_ = Tensor(inner_->inputs[0]);
    inputs = {x};
    algorithm = "padded " + inner_->algorithm;
    workspace += padded_.bytes();
  }

  void take_plain_weights() override {
    inner_->take_plain_weights();
    w = inner_->w;
  }

  void forward(Stream& stream, const View& x, const View& weights, const View& bias, const View& y,
               const View& added) override {
    pad(stream, Pass::forward, x);
    inner_->forward(stream, padded_, weights, bias, y, added);
  }
  void input_grad(Stream& stream, const View& weights, const View& dy, const View& dx) override {
    inner_->input_grad(stream, weights, dy, padded_);
    crop(stream, dx);
  }
  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    pad(stream, Pass::weight_grad, x);
    inner_->weight_grad(stream, padded_, dy, dw, db);
  }

 private:
  void pad(Stream& stream, Pass pass, const View& x) {
    check_operand(x, inputs[0], "conv");
    stream.run(pass, "conv.pad", [&] {
      each_row([&](std::int64_t row, float* padded, std::int64_t width) {
        if (row < 0) return void(std::fill_n(padded, width, 0.0f));
        std::fill_n(padded, pad_.left, 0.0f);
        std::copy_n(x.as<const float>() + row * shape_.w, shape_.w, padded + pad_.left);
        std::fill_n(padded + pad_.left + shape_.w, pad_.right, 0.0f);
      });
    });
  }
  void crop(Stream& stream, const View& dx) {
    check_operand(dx, inputs[0], "conv");
    stream.run(Pass::input_grad, "conv.crop", [&] {
      each_row([&](std::int64_t row, const float* padded, std::int64_t) {
        if (row >= 0) std::copy_n(padded + pad_.left, shape_.w, dx.as<float>() + row * shape_.w);
      });
    });
  }
  /// Calls f(row, padded, its width) for each row of the padded image: the number of the one of x
  /// that it has, of all planes, or -1.
  template <class F>
  void each_row(const F& f) const {
    const std::int64_t h = pad_.top + shape_.h + pad_.bottom;
    const std::int64_t width = pad_.left + shape_.w + pad_.right;
#pragma omp parallel for schedule(static)
    for (std::int64_t plane = 0; plane < shape_.n * shape_.c; ++plane)
      for (std::int64_t r = 0; r < h; ++r) {
        const bool within = r >= pad_.top && r < pad_.top + shape_.h;
        f(within ? plane * shape_.h + r - pad_.top : -1,
          padded_.as<float>() + (plane * h + r) * width, width);
      }
  }

  std::unique_ptr<WeightedKernel> inner_;
  Pad pad_;
  Shape shape_;  // of x
  Tensor padded_;
};

bool jitted(const WeightedKernel& kernel) { return kernel.algorithm.starts_with("jit"); }

}  // namespace

std::unique_ptr<WeightedKernel> padded_conv(const ConvGeometry& g, const Form& x,
                                            std::unique_ptr<WeightedKernel> usual,
                                            const MakeConv& make) {
  constexpr std::int64_t few = 3;
  const bool may_be = x.dtype == DType::f32 && x.layout.plain() && x.shape.c <= few &&
                      g.groups == 1 && usual->inputs[0].layout.plain() && !jitted(*usual);
  if (!may_be || g.pad == Pad(0)) return usual;
  ConvGeometry without = g;
  without.pad = 0;
  Form padded = x;
  padded.shape.h += g.pad.top + g.pad.bottom, padded.shape.w += g.pad.left + g.pad.right;
  auto inner = make(without, padded);
  if (!jitted(*inner) || inner->inputs[0] != padded) return usual;
  return std::make_unique<PaddedConv>(std::move(inner), g.pad, x);
}

}  // namespace lamina::detail
