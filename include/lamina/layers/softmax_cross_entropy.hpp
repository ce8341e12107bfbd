// SoftmaxCrossEntropy: the loss at the end of a network that classifies, with its accuracy.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// p = softmax(x);  loss = - sum_c target[c] log p[c], target = (1-e) onehot(label) + e/C with
/// e = label_smoothing;  dx = (p - target) / rows
///
/// y = {mean loss, rows whose label is the largest x, rows whose label is among the five largest},
/// f64, over the `rows` of the global batch that count: the same on all ranks. In training y is
/// complete when backward returns, in inference when forward does.
///
/// split    forward                             backward
/// batch    all-reduce 3 sums  behind dx
class SoftmaxCrossEntropy final : public Layer {
 public:
  struct Options {
    double label_smoothing = 0;
  };
  explicit SoftmaxCrossEntropy(Options o) : o_(o) {
    check(o_.label_smoothing >= 0 && o_.label_smoothing < 1,
          "label_smoothing must be in [0, 1), got ", o_.label_smoothing);
  }

  std::string_view type() const override { return "SoftmaxCrossEntropy"; }
  std::string describe() const override {
    return o_.label_smoothing > 0 ? text("smoothing ", o_.label_smoothing) : "";
  }

  Shape output(std::span<const Shape> xs) const override {
    const Shape& x = only(xs);
    check(x.h == 1 && x.w == 1, "expected one value per class, got input ", x);
    return {1, 3, 1, 1};
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double n = double(split.of_input(only(xs)).size()), pass = double(size_of(t)) * n;
    return {.forward = {5 * n, 2 * pass},  // reads x, writes p
            .input_grad = {2 * n, 2 * pass},
            .messages = {{Collective::all_reduce, Pass::forward, 3 * 8, split.batch, true}}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().softmax_cross_entropy(o_.label_smoothing, xs[0]);
    ranks_ = site.along(Axis::batch);
    p_ = Tensor(kernel_->inputs[0]);
    Placement p = placed(*kernel_);
    p.output = {{1, 3, 1, 1}, DType::f64, {}};
    p.reads_x = false, p.reads_y = true;  // y is still being summed when backward starts
    p.workspace += p_.bytes();
    return p;
  }

  /// Throws Error without labels of this rank's samples.
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    check(context.labels && context.labels.shape.n == xs[0].shape.n, "expected ", xs[0].shape.n,
          " labels, got ", context.labels ? context.labels.shape.n : 0);
    kernel_->forward(context.stream, xs[0], context.labels, p_, y);
    sum_ = ranks_.all_reduce(context.stream, Pass::forward, y);
    if (!context.training) finish(context, y);
  }

  /// dy is not read: this is the end.
  void backward(Context& context, std::span<const View>, const View& y, const View&,
                std::span<const View> dxs) override {
    if (dxs[0]) kernel_->input_grad(context.stream, p_, context.labels, 1 / context.rows, dxs[0]);
    finish(context, y);
  }

 private:
  void finish(Context& context, const View& y) {
    sum_.wait(context.stream);
    y.as<double>()[0] /= context.rows;
  }

  Options o_;
  std::unique_ptr<LossKernel> kernel_;
  Communicator ranks_;
  Tensor p_;
  Pending sum_;
};

}  // namespace lamina
