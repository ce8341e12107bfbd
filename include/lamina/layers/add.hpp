// Add: the sum of tensors of one shape, where branches of a network meet.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = x1 + x2 + ...;  every dx is dy itself, so backward does nothing. Sends nothing under any
/// split of samples, channels, rows or columns.
class Add final : public Layer {
 public:
  struct Options {};
  explicit Add(Options) {}

  std::string_view type() const override { return "Add"; }

  Shape output(std::span<const Shape> xs) const override {
    check(xs.size() >= 2, "expected at least two inputs, got ", xs.size());
    for (const Shape& x : xs)
      check(x == xs[0], "expected inputs of one shape, got ", xs[0], " and ", x);
    return xs[0];
  }

  Axis splits() const override { return all_but_input; }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double n = double(split.of_output(xs[0]).size()), k = double(xs.size());
    return {.forward = {(k - 1) * n, (k + 1) * double(size_of(t)) * n}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().sum(std::vector<Form>(xs.begin(), xs.end()));
    Placement p = placed(*kernel_);
    p.reads_x = false, p.passes_gradient = true;
    p.in_place = kernel_->output == kernel_->inputs[0];
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, xs, y);
  }
  void backward(Context&, std::span<const View>, const View&, const View&,
                std::span<const View>) override {}

 private:
  std::unique_ptr<NaryKernel> kernel_;
};

}  // namespace lamina
