// Convolution of an image that is padded beforehand. Below AVX-512 oneDNN takes long windows with
// padding around few channels as products of matrices, which with AVX2 are half as fast as its
// kernel for images that need none, and leave y plain.
#include "cpu/onednn_copied_conv.hpp"
#include "cpu/simd.hpp"

#include <lamina/kernels/instruction_set.hpp>

#include <algorithm>

namespace lamina::detail {
namespace {

class PaddedConv final : public CopiedConv {
 public:
  PaddedConv(const RuntimePtr& runtime, std::unique_ptr<WeightedKernel> inner, const Pad& pad,
             const Form& x)
      : CopiedConv(runtime, std::move(inner), x, "padded"), pad_(pad), shape_(x.shape) {}

 private:
  void copy_in(Stream& stream, Pass pass, const View& x) override {
    stream.run(pass, "conv.pad", [&] {
      each_row([&](std::int64_t row, float* padded, std::int64_t width) {
        if (row < 0) return void(std::fill_n(padded, width, 0.0f));
        std::fill_n(padded, pad_.left, 0.0f);
        std::copy_n(x.as<const float>() + row * shape_.w, shape_.w, padded + pad_.left);
        std::fill_n(padded + pad_.left + shape_.w, pad_.right, 0.0f);
      });
    });
  }
  void copy_out(Stream& stream, const View& dx) override {
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
    float* const padded = image().as<float>();
#pragma omp parallel for schedule(static) if (shape_.size() > std::int64_t(parallel_elements))
    for (std::int64_t plane = 0; plane < shape_.n * shape_.c; ++plane)
      for (std::int64_t r = 0; r < h; ++r) {
        const bool within = r >= pad_.top && r < pad_.top + shape_.h;
        f(within ? plane * shape_.h + r - pad_.top : -1, padded + (plane * h + r) * width, width);
      }
  }

  Pad pad_;
  Shape shape_;  // of x
};

/// Whether oneDNN compiles forward for it, and the gradient of its weights.
bool jitted(const WeightedKernel& kernel) {
  const std::string& all = kernel.algorithm;
  return all.starts_with("jit") && all.substr(all.rfind('|') + 1).starts_with("jit");
}

}  // namespace

std::unique_ptr<WeightedKernel> padded_conv(const RuntimePtr& runtime, const ConvGeometry& g,
                                            const Form& x, const MakeConv& make) {
  constexpr std::int64_t few = 3;
  const bool may_be = instruction_set() < InstructionSet::avx512_core && x.dtype == DType::f32 &&
                      x.layout.plain() && x.shape.c <= few && g.groups == 1 && g.pad != Pad(0) &&
                      runtime->choice.only.empty();
  if (!may_be) return nullptr;
  ConvGeometry without = g;
  without.pad = 0;
  Form padded = x;
  padded.shape.h += g.pad.top + g.pad.bottom, padded.shape.w += g.pad.left + g.pad.right;
  // Scratchpads of what is not taken go with their runtimes.
  const auto trial = [&] { return std::make_shared<Runtime>(runtime->choice); };
  if (make(trial(), g, x)->algorithm.starts_with("jit")) return nullptr;
  const auto inner = make(trial(), without, padded);
  if (!jitted(*inner) || inner->inputs[0] != padded) return nullptr;
  return std::make_unique<PaddedConv>(runtime, make(runtime, without, padded), g.pad, x);
}

}  // namespace lamina::detail
