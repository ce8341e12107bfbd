// Whether a convolution in bf16 takes less time in f32, between copies.
#include "cpu/onednn_weighted.hpp"

#include <lamina/base/clock.hpp>

#include <algorithm>
#include <limits>
#include <optional>

namespace lamina::detail {
namespace {

/// What the passes of a kernel read and write.
class Operands {
 public:
  Operands(const WeightedKernel& kernel, bool forward_only)
      : x_(noise(kernel.inputs[0])),
        w_(noise(kernel.w)),
        y_(noise(kernel.output)),
        added_(noise(kernel.output)) {
    if (kernel.b.shape.size() > 0) b_ = noise(kernel.b);
    if (forward_only) return;
    dx_ = Tensor(kernel.inputs[0]), dw_ = Tensor(gradient(kernel.w));
    if (b_.view()) db_ = Tensor(gradient(kernel.b));
  }

  double seconds(WeightedKernel& kernel) {
    const double start = now();
    kernel.forward(stream_, x_, w_, b_, y_, added_);
    if (!dw_.view()) return now() - start;
    kernel.input_grad(stream_, w_, y_, dx_);
    kernel.weight_grad(stream_, x_, y_, dw_, db_);
    return now() - start;
  }

 private:
  /// Between 1 and 2, of either sign.
  static Tensor noise(const Form& form) {
    Tensor t(form);
    std::uint32_t state = 0x9E3779B9u;
    for (std::size_t i = 0; i < t.bytes() / sizeof(BF16); ++i) {
      state ^= state << 13, state ^= state >> 17, state ^= state << 5;
      t.as<BF16>()[i].bits = std::uint16_t(0x3F80u | (state & 0x807Fu));
    }
    return t;
  }

  Stream stream_;
  Tensor x_, w_, b_, y_, added_, dx_, dw_, db_;
};

/// Of the fastest of three runs behind a first one that does not count, in turns.
std::pair<double, double> times(WeightedKernel& one, WeightedKernel& other, bool forward_only) {
  Runtime::tried = true;
  Operands of_one(one, forward_only), of_other(other, forward_only);
  double first = std::numeric_limits<double>::max(), second = first;
  of_one.seconds(one), of_other.seconds(other);
  for (int i = 0; i < 3; ++i) {
    first = std::min(first, of_one.seconds(one));
    second = std::min(second, of_other.seconds(other));
  }
  return {first, second};
}

}  // namespace

std::string why_f32(
    Runtime& runtime, const std::string& what, WeightedKernel& native, bool forward_only,
    const std::function<std::unique_ptr<WeightedKernel>(const RuntimePtr&)>& in_f32) {
  Verdicts& verdicts = *runtime.choice.verdicts;
  const auto key = [&](const char* type) {
    return text(library(), ": seconds in ", type, forward_only ? " of y" : "", " for ", what,
                " beside ", native.algorithm);
  };
  const std::string of_bf16 = key("bf16"), of_f32 = key("f32");
  if (!verdicts.find(of_bf16) || !verdicts.find(of_f32)) {
    const auto trial = std::make_shared<Runtime>(runtime.choice);  // its scratchpad goes with it
    const auto widened = in_f32(trial);
    std::pair<double, double> seconds{0, 0};  // without a choice
    if (widened->algorithm.find("wino") != std::string::npos)
      seconds = times(native, *widened, forward_only);
    verdicts.keep(of_bf16, seconds.first), verdicts.keep(of_f32, seconds.second);
  }
  const double a = *verdicts.find(of_bf16), b = *verdicts.find(of_f32);
  if (b >= 0.95 * a) return {};  // what is hardly faster would not be on another day
  return text("by Winograd in f32 between copies, ", format("%.3g", 1e3 * b), " ms instead of ",
              format("%.3g", 1e3 * a));
}

}  // namespace lamina::detail
