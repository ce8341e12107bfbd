// SoftmaxCrossEntropy: the loss at the end of a network that classifies, with its accuracy.
#pragma once

#include <lamina/layers/layer.hpp>

#include <algorithm>

namespace lamina {

/// p = softmax(x);  loss = - sum_c target[c] log p[c], target = (1-e) onehot(label) + e/C with
/// e = label_smoothing;  dx = (p - target) / rows
///
/// A row is a sample, or where x {n,c,h,w} has rows and columns a pixel of one: its c numbers are
/// the logits of the classes, and targets are i32 labels {n,1,h,w}.
///
/// y = {mean loss, rows whose label is the largest x, rows whose label is among the five largest,
/// rows, ranks that ask to stop}, f64, over the rows of the global batch that count, whose label is
/// not below zero: the same on all ranks that take part. Where no row counts, the loss is 0, and so
/// is dx. A request to stop (Context::stop) rides along, and costs no message of its own.
///
/// split      forward                                                   backward
/// batch      all-reduce 5 sums
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
  explicit SoftmaxCrossEntropy(Options o);

  std::string_view type() const override { return "SoftmaxCrossEntropy"; }
  std::string describe() const override {
    return o_.label_smoothing > 0 ? text("smoothing ", o_.label_smoothing) : "";
  }
  std::string options() const override { return "smoothing " + exact(o_.label_smoothing); }

  bool is_loss() const override { return true; }
  bool scales_gradient() const override { return true; }
  Form targets(std::span<const Shape> xs) const override {
    return {{xs[0].n, 1, xs[0].h, xs[0].w}, DType::i32, {}};
  }
  Shape output(std::span<const Shape> xs) const override;

  Axis splits() const override { return Axis::batch | Axis::channel; }
  std::int64_t cut_channels(std::span<const Shape> xs) const override { return xs[0].c; }
  std::string_view limit(Axis axis, std::span<const Shape> xs) const override {
    const bool image = axis == Axis::height || axis == Axis::width;
    return image ? "it takes whole images of logits" : Layer::limit(axis, xs);
  }
  /// y is the same on all ranks that take part.
  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override {
    return Blocks::of(output(xs), split, Axis::none, ranks);
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 private:
  struct Placed;
  Options o_;
};

struct SoftmaxCrossEntropy::Placed final : PlacedLayer {
  /// Throws Error without labels of the rows of xs[0].
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    const Shape& x = xs[0].shape;
    const std::int64_t pixels = x.h * x.w;
    check(context.targets && context.targets.shape.n == x.n &&
              context.targets.shape.size() == x.n * pixels,
          "expected ", x.n * pixels, " labels, got ",
          context.targets ? context.targets.shape.size() : 0);
    Stream& s = context.stream;
    kernel->largest(s, xs[0], context.targets, context.now, maxima);
    parts.all_reduce(s, Pass::forward, maxima, ReduceOp::max).wait(s);
    kernel->sums(s, xs[0], context.targets, maxima, p, sums);
    parts.all_reduce(s, Pass::forward, sums).wait(s);
    kernel->finish(s, context.targets, maxima, sums, p, y);
    ranks.all_reduce(s, Pass::forward, y).wait(s);
    kernel->mean(s, y, rows);
  }

  /// dy is not read: this is the end.
  void backward(Context& context, std::span<const View>, const View&, const View&,
                std::span<const View> dxs) override {
    // How many rows of all micro-batches count is known after the last one: the update says.
    const double all = context.micro_batches > 1 ? double(context.micro_batches * samples) : 0;
    if (dxs[0])
      kernel->input_grad(context.stream, p, context.targets, rows, all, dxs[0], context.loss_scale);
  }

  std::unique_ptr<LossKernel> kernel;
  Communicator ranks, parts;  ///< that have other samples; other classes
  Tensor p, sums, rows;
  Tensor maxima;             ///< two per row, then whether a rank asks to stop
  std::int64_t samples = 1;  ///< across all ranks
};

}  // namespace lamina
