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
/// split      forward                                                   backward
/// batch      all-reduce 3 sums  behind dx
/// channel    all-reduce, per row, 2 maxima (logits; that of the
///            label), then 3 sums (exp; logits; classes ahead)
///
/// Split by channel, each rank has a part of the classes: logits are not gathered. The labels of a
/// rank are those of the samples whose logits it takes.
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

  Axis splits() const override { return Axis::batch | Axis::channel; }
  std::int64_t cut_channels(std::span<const Shape> xs) const override { return xs[0].c; }
  /// y is the same on all ranks that take part.
  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override {
    return Blocks::of(output(xs), split, Axis::none, ranks);
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape x = split.of_output(only(xs));
    const double n = double(x.size()), pass = double(size_of(t)) * n, rows = double(x.n);
    Cost cost{.forward = {5 * n, 2 * pass},  // reads x, writes p
              .input_grad = {2 * n, 2 * pass},
              .messages = {{Collective::all_reduce, Pass::forward, 3 * 8, split.batch, true}}};
    if (split.channel > 1)
      for (const double values : {2 * rows, 3 * rows})
        cost.messages.push_back(
            {Collective::all_reduce, Pass::forward, 8 * values, split.channel, false});
    return cost;
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    const std::int64_t classes = xs[0].whole.c, n = xs[0].shape.n;
    const Part mine = part(classes, site.split().channel, site.place().channel);
    kernel_ =
        site.backend().softmax_cross_entropy({o_.label_smoothing, classes, mine.begin}, xs[0]);
    ranks_ = site.along(Axis::batch), parts_ = site.along(Axis::channel);
    p_ = Tensor(kernel_->inputs[0]);
    largest_ = Tensor({2, n, 1, 1}, DType::f64), sums_ = Tensor({3, n, 1, 1}, DType::f64);
    Placement p = placed(*kernel_);
    p.output = {{1, 3, 1, 1}, DType::f64, {}};
    p.reads_x = false, p.reads_y = true;  // y is still being summed when backward starts
    p.workspace += p_.bytes() + largest_.bytes() + sums_.bytes();
    return p;
  }

  /// Throws Error without labels of the samples of xs[0].
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    check(context.labels && context.labels.shape.n == xs[0].shape.n, "expected ", xs[0].shape.n,
          " labels, got ", context.labels ? context.labels.shape.n : 0);
    Stream& s = context.stream;
    kernel_->largest(s, xs[0], context.labels, largest_);
    parts_.all_reduce(s, Pass::forward, largest_, ReduceOp::max).wait(s);
    kernel_->sums(s, xs[0], context.labels, largest_, p_, sums_);
    parts_.all_reduce(s, Pass::forward, sums_).wait(s);
    kernel_->finish(s, context.labels, largest_, sums_, p_, y);
    total_ = ranks_.all_reduce(s, Pass::forward, y);
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
    total_.wait(context.stream);
    y.as<double>()[0] /= context.rows;
  }

  Options o_;
  std::unique_ptr<LossKernel> kernel_;
  Communicator ranks_, parts_;  // that have other samples; other classes
  Tensor p_, largest_, sums_;
  Pending total_;
};

}  // namespace lamina
