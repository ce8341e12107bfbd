// Concat: tensors one after the other along the channels.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = [x1, x2, ...] along c;  each dx is its channels of dy. Sends nothing under a split of
/// samples.
class Concat final : public Layer {
 public:
  struct Options {};
  explicit Concat(Options) {}

  std::string_view type() const override { return "Concat"; }

  Shape output(std::span<const Shape> xs) const override {
    check(xs.size() >= 2, "expected at least two inputs, got ", xs.size());
    Shape y = xs[0];
    for (const Shape& x : xs.subspan(1)) {
      check(x.n == y.n && x.h == y.h && x.w == y.w,
            "expected inputs that differ in channels only, got ", xs[0], " and ", x);
      y.c += x.c;
    }
    return y;
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double y = double(split.of_output(output(xs)).size());
    const Work copy{.bytes = 2 * double(size_of(t)) * y};
    return {.forward = copy, .input_grad = copy};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().concat(std::vector<Form>(xs.begin(), xs.end()));
    Placement p = placed(*kernel_);
    p.reads_x = false;
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, xs, y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    kernel_->input_grad(context.stream, dy, dxs);
  }

 private:
  std::unique_ptr<NaryKernel> kernel_;
};

}  // namespace lamina
