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
/// common, local ones too.
class BatchNorm final : public Layer {
 public:
  struct Options {
    double epsilon = 1e-5, momentum = 0.1;
    bool global = false;
    bool affine = true;  ///< has w and b
    double scale = 1;    ///< initial w
  };

  explicit BatchNorm(Options o) : o_(o) {
    check(o_.epsilon > 0, "epsilon must be positive, got ", o_.epsilon);
    check(o_.momentum >= 0 && o_.momentum <= 1, "momentum must be in [0, 1], got ", o_.momentum);
  }

  std::string_view type() const override { return "BatchNorm"; }
  std::string describe() const override { return o_.global ? "global statistics" : ""; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }

  Axis splits() const override { return all_but_input; }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape x = split.of_output(only(xs));
    const double n = double(x.size()), s = double(size_of(t)), c = double(x.c);
    const int replicas = split.ways(replica_axes), group = split.ways(group_axes());
    // Backward reads x and dy for the sums, then x and dy again for dx.
    Cost cost{.forward = {7 * n, 3 * s * n},
              .recompute = {2 * n, 2 * s * n},
              .input_grad = {7 * n, 3 * s * n},
              .weight_grad = {4 * n, 2 * s * n}};
    if (o_.affine) {
      cost.parameters = 2 * c;
      cost.messages.push_back(
          {Collective::all_reduce, Pass::weight_grad, 2 * c * s, replicas, true});
    }
    if (o_.global || group > 1)
      for (Pass pass : {Pass::forward, Pass::input_grad})
        cost.messages.push_back({.op = Collective::all_reduce,
                                 .pass = pass,
                                 .bytes = 2 * c * 8,
                                 .ranks = group,
                                 .once = true});
    return cost;
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().batch_norm(xs[0]);
    const Communicator replicas = site.along(replica_axes);
    group_ = site.along(group_axes());
    const Shape &x = xs[0].shape, &whole = xs[0].whole;
    const Form vector{{1, x.c, 1, 1}, xs[0].dtype, {}}, wide{{1, x.c, 1, 1}, DType::f64, {}};
    mean_ = Tensor(wide), inv_std_ = Tensor(wide);
    sums_ = Tensor({{1, 2 * x.c, 1, 1}, DType::f64, {}});
    const Shape seen{o_.global ? whole.n : x.n, x.c, whole.h, whole.w};
    count_ = double(seen.n * seen.h * seen.w);
    check(count_ > 1, "batch norm needs more than one value per channel, got input ", seen);

    const Part channels = part(whole.c, site.split().channel, site.place().channel);
    const auto vector_of = [&](const char* name, double value, bool trained) {
      return Parameter{.name = name,
                       .dims = {whole.c},
                       .form = vector,
                       .whole = {1, whole.c, 1, 1},
                       .block = {{0, 1}, channels, {0, 1}, {0, 1}},
                       .initial = {Initial::Kind::constant, value},
                       .trained = trained,
                       .decay = false,
                       .replicas = replicas};
    };
    w_ = vector_of("weight", o_.scale, true), b_ = vector_of("bias", 0, true);
    running_mean_ = vector_of("running_mean", 0, false);
    running_var_ = vector_of("running_var", 1, false);
    Placement p = placed(*kernel_);
    p.workspace += mean_.bytes() + inv_std_.bytes() + sums_.bytes();
    return p;
  }

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
      kernel_->from_running(s, o_.epsilon, running_mean_.value, running_var_.value, mean_,
                            inv_std_);
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

  std::vector<Parameter*> parameters() override {
    if (!o_.affine) return {&running_mean_, &running_var_};
    return {&w_, &b_, &running_mean_, &running_var_};
  }

 private:
  static constexpr Axis replica_axes = Axis::batch | Axis::height | Axis::width;
  /// Ranks that differ along these share statistics.
  Axis group_axes() const { return o_.global ? replica_axes : Axis::height | Axis::width; }

  Options o_;
  std::unique_ptr<NormKernel> kernel_;
  Communicator group_;  // the ranks that share statistics
  Parameter w_, b_, running_mean_, running_var_;
  Tensor mean_, inv_std_, sums_;
  double count_ = 0;
};

}  // namespace lamina
