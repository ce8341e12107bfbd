// Linear: every output is a weighted sum of all inputs of its sample.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y[n,k] = b[k] + sum_c w[k,c] x[n,c];  an x of any height and width counts as c*h*w features
///
/// split    forward     backward
/// batch                all-reduce dw, db   behind the layers below
class Linear final : public Layer {
 public:
  struct Options {
    std::int64_t features = 0;  ///< of y
    bool bias = true;
    /// Standard deviation with which weights start (the bias is then 0); if 0, both start uniform
    /// within +-1/sqrt(inputs).
    double normal = 0;
  };

  explicit Linear(Options o) : o_(o) {
    check(o_.features > 0, "features must be positive, got ", o_.features);
    check(o_.normal >= 0, "the standard deviation must not be negative, got ", o_.normal);
  }

  std::string_view type() const override { return "Linear"; }
  std::string describe() const override { return text(o_.features); }
  Shape output(std::span<const Shape> xs) const override { return {only(xs).n, o_.features, 1, 1}; }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape x = split.of_input(only(xs)), y = split.of_output(output(xs));
    const double weights = double(y.c) * double(x.sample()), s = double(size_of(t));
    const Work once{.flops = 2 * double(x.n) * weights,
                    .bytes = s * (double(x.size()) + weights + double(y.size()))};
    const double parameters = weights + (o_.bias ? double(y.c) : 0);
    return {.forward = once,
            .input_grad = once,
            .weight_grad = once,
            .parameters = parameters,
            .messages = {{Collective::all_reduce, Pass::weight_grad, s * parameters,
                          split.batch * split.height * split.width, true}}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().linear(o_.features, o_.bias, xs[0]);
    const Communicator replicas = site.along(Axis::batch | Axis::height | Axis::width);
    const std::int64_t inputs = xs[0].whole.sample();
    const bool normal = o_.normal > 0;
    const Initial uniform{Initial::Kind::uniform, 1 / std::sqrt(double(inputs))};
    w_ = {.name = "weight",
          .dims = {o_.features, inputs},
          .form = kernel_->w,
          .initial = normal ? Initial{Initial::Kind::normal, o_.normal} : uniform,
          .replicas = replicas};
    b_ = {.name = "bias",
          .dims = {o_.features},
          .form = kernel_->b,
          .initial = normal ? Initial{} : uniform,
          .decay = false,
          .replicas = replicas};
    return placed(*kernel_);
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, xs[0], w_.value, b_.value, y);
  }

  void backward(Context& context, std::span<const View> xs, const View&, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) kernel_->input_grad(context.stream, w_.value, dy, dxs[0]);
    kernel_->weight_grad(context.stream, xs[0], dy, w_.grad, b_.grad);
    w_.reduce(context.stream), b_.reduce(context.stream);
  }

  std::vector<Parameter*> parameters() override {
    return o_.bias ? std::vector{&w_, &b_} : std::vector{&w_};
  }

 private:
  Options o_;
  std::unique_ptr<WeightedKernel> kernel_;
  Parameter w_, b_;
};

}  // namespace lamina
