// Convolution by 1x1 windows with a stride, of the pixels that it takes, copied beforehand. On
// images n-h-w-c oneDNN's kernels for tiles (AMX) take several times as long for a stride as
// without one.
#include "cpu/onednn_copied_conv.hpp"
#include "cpu/onednn_isa.hpp"
#include "cpu/simd.hpp"
#include "cpu/tile_conv.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

class ThinnedConv final : public CopiedConv {
 public:
  ThinnedConv(const RuntimePtr& runtime, std::unique_ptr<WeightedKernel> inner, const Pair& stride,
              const Form& x)
      : CopiedConv(runtime, std::move(inner), x, "thinned"), stride_(stride), x_(x.shape) {}

 private:
  void copy_in(Stream& stream, Pass pass, const View& x) override {
    const Shape taken = image().shape;
    stream.run(pass, "conv.thin", [&] {
      each_row(taken, [&](std::int64_t n, std::int64_t p) {
        const BF16* from = row(x, n, p * stride_.h);
        BF16* to = row(image(), n, p);
        for (std::int64_t q = 0; q < taken.w; ++q, from += stride_.w * x_.c, to += x_.c)
          std::copy_n(from, x_.c, to);
      });
    });
  }
  void copy_out(Stream& stream, const View& dx) override {
    stream.run(Pass::input_grad, "conv.spread", [&] {
      each_row(x_, [&](std::int64_t n, std::int64_t r) {
        BF16* to = row(dx, n, r);
        if (r % stride_.h != 0) return void(std::fill_n(to, x_.w * x_.c, BF16()));
        const BF16* from = row(image(), n, r / stride_.h);
        for (std::int64_t s = 0; s < x_.w; ++s, to += x_.c) {
          if (s % stride_.w == 0) {
            std::copy_n(from, x_.c, to), from += x_.c;
          } else {
            std::fill_n(to, x_.c, BF16());
          }
        }
      });
    });
  }
  static BF16* row(const View& image, std::int64_t n, std::int64_t r) {
    const Shape& s = image.shape;
    return image.as<BF16>() + (n * s.h + r) * s.w * s.c;
  }
  /// Calls f(image, row) for each row of the images.
  template <class F>
  static void each_row(const Shape& images, const F& f) {
#pragma omp parallel for schedule(static) if (images.size() > std::int64_t(parallel_elements))
    for (std::int64_t i = 0; i < images.n * images.h; ++i) f(i / images.h, i % images.h);
  }

  Pair stride_;
  Shape x_;
};

}  // namespace

std::unique_ptr<WeightedKernel> thinned_conv(const RuntimePtr& runtime, const ConvGeometry& g,
                                             const Form& x, const MakeConv& make) {
  const bool may_be = x.dtype == DType::bf16 && g.kernel == Pair(1) && g.stride != Pair(1) &&
                      g.pad == Pad(0) && g.groups == 1 && runtime->choice.only.empty();
  if (!may_be || settled_instruction_set().find("amx") == std::string::npos) return nullptr;
  g.check(x.shape);
  const auto beside = [](const Shape& shape) {
    return to_form(shape, Desc(dims(shape), Type::bf16, dnnl::memory::format_tag::nhwc));
  };
  ConvGeometry without = g;
  without.stride = 1;
  Shape taken = g.output(x.shape);
  taken.c = x.shape.c;
  const Form thinned = beside(taken);
  // The scratchpad of what is not taken goes with its runtime.
  const auto tried = make(std::make_shared<Runtime>(runtime->choice), without, thinned);
  const std::string& by = tried->algorithm;
  const bool tiles = by.find("amx") != by.npos || by.find(TileConv::name) != by.npos;
  if (!tiles || tried->inputs[0] != thinned) return nullptr;
  return std::make_unique<ThinnedConv>(runtime, make(runtime, without, thinned), g.stride,
                                       beside(x.shape));
}

}  // namespace lamina::detail
