// BatchNorm: normalises each channel over samples and positions, with local or global statistics.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = w * (x - mean) / sqrt(var + epsilon) + b   per channel (Ioffe and Szegedy, 2015)
///
/// split            forward                        backward
/// batch            global: all-reduce 2c sums     global: all-reduce 2c sums; all-reduce dw, db
/// channel
/// height, width    all-reduce 2c sums             all-reduce 2c sums; all-reduce dw, db
///
/// In training, mean and var are the batch's (that of the samples of this rank, or with `global` of
/// all), and the running averages move towards them by `momentum`; in inference they are the
/// running averages. Ranks that share samples but not rows or columns have their statistics in
/// common, local ones too. Each rank keeps the running averages of its own statistics; inference
/// takes their mean, for which a network that was placed for training sums 2c values.
class BatchNorm final : public Layer {
 public:
  struct Options {
    double epsilon = 1e-5, momentum = 0.1;
    bool global = false;
    bool affine = true;  ///< has w and b
    double scale = 1;    ///< initial w
  };

  explicit BatchNorm(Options o);

  std::string_view type() const override { return "BatchNorm"; }
  std::string describe() const override { return o_.global ? "global statistics" : ""; }
  std::string options() const override {
    return text(o_.global ? "global" : "local", " statistics, epsilon ", exact(o_.epsilon),
                ", momentum ", exact(o_.momentum), o_.affine ? "" : ", not affine", ", scale ",
                exact(o_.scale));
  }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }

  Axis splits() const override { return all_but_input; }
  /// A variance takes two values or more.
  void check_split(std::span<const Shape> xs, const Split& split) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) override;

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    Stream& s = context.stream;
    if (context.again) {
      // mean_ and inv_std_ are there still.
    } else if (context.training) {
      kernel_->statistics(s, xs[0], sums_);
      group_.all_reduce(s, Pass::forward, sums_).wait(s);
      kernel_->finish(s, sums_, count_, o_.epsilon, o_.momentum, mean_, inv_std_,
                      running_mean_.value, running_var_.value);
    } else {
      kernel_->running(s, running_mean_.value, running_var_.value, sums_);
      variants_.all_reduce(s, Pass::forward, sums_).wait(s);
      kernel_->from_running(s, sums_, variants_.size(), o_.epsilon, mean_, inv_std_);
    }
    kernel_->normalize(s, xs[0], mean_, inv_std_, w_.value, b_.value, y);
  }

  void backward(Context& context, std::span<const View> xs, const View&, const View& dy,
                std::span<const View> dxs) override {
    Stream& s = context.stream;
    kernel_->gradients(s, xs[0], mean_, inv_std_, dy, sums_, w_.grad, b_.grad);
    Pending total = group_.all_reduce(s, Pass::input_grad, sums_);
    w_.reduce(s), b_.reduce(s);
    total.wait(s);
    if (dxs[0]) kernel_->input_grad(s, xs[0], mean_, inv_std_, w_.value, dy, sums_, count_, dxs[0]);
  }

  std::vector<Parameter*> parameters() override;

 private:
  static constexpr Axis replica_axes = Axis::batch | Axis::height | Axis::width;
  /// Ranks that differ along these share statistics.
  Axis group_axes() const { return o_.global ? replica_axes : Axis::height | Axis::width; }

  Options o_;
  std::unique_ptr<NormKernel> kernel_;
  Communicator group_;     // the ranks that share statistics
  Communicator variants_;  // those that have statistics of their own
  Parameter w_, b_, running_mean_, running_var_;
  Tensor mean_, inv_std_, sums_;
  double count_ = 0;
};

}  // namespace lamina
