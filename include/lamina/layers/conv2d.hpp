// Conv2D: two-dimensional convolution with groups, dilation, stride and asymmetric padding.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y[n,k,p,q] = b[k] + sum_{c,r,s} w[k,c,r,s] x[n, c, p*stride + r*dilation - pad,
///                                              q*stride + s*dilation - pad]
///
/// split    forward     backward
/// batch                all-reduce dw, db   behind the layers below
class Conv2D final : public Layer {
 public:
  struct Options {
    std::int64_t channels = 0;  ///< of y
    Pair kernel = 1, stride = 1;
    Pad pad = 0;
    Pair dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
    /// Weights start normal with variance 2/(fan out) (He et al., 2015) if set, else uniform within
    /// +-1/sqrt(fan in); the bias uniform within the same bound.
    bool he_normal = false;
  };

  explicit Conv2D(Options o) : o_(std::move(o)) {
    check(o_.channels > 0, "channels must be positive, got ", o_.channels);
    check(o_.groups > 0, "groups must be positive, got ", o_.groups);
    check(o_.kernel.h > 0 && o_.kernel.w > 0, "kernel must be positive");
    check(o_.stride.h > 0 && o_.stride.w > 0, "stride must be positive");
    check(o_.dilation.h > 0 && o_.dilation.w > 0, "dilation must be positive");
    check(o_.pad.top >= 0 && o_.pad.left >= 0 && o_.pad.bottom >= 0 && o_.pad.right >= 0,
          "pad must not be negative");
  }

  std::string_view type() const override { return "Conv2D"; }
  std::string describe() const override {
    std::string s = text(o_.channels, ' ', o_.kernel.h, 'x', o_.kernel.w);
    if (o_.stride != Pair(1)) s += text(" s", o_.stride.h);
    if (o_.pad != Pad(0)) s += text(" p", o_.pad.top);
    if (o_.dilation != Pair(1)) s += text(" d", o_.dilation.h);
    if (o_.groups != 1) s += text(" g", o_.groups);
    return s;
  }

  Shape output(std::span<const Shape> xs) const override {
    const Shape& x = only(xs);
    check(x.c % o_.groups == 0 && o_.channels % o_.groups == 0, "groups ", o_.groups,
          " must divide the input channels ", x.c, " and the output channels ", o_.channels);
    const Shape y = geometry().output(x);
    check(y.h > 0 && y.w > 0, "kernel ", o_.kernel.h, 'x', o_.kernel.w,
          " does not fit into the padded input ", x);
    return y;
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape x = split.of_input(only(xs)), y = split.of_output(output(xs));
    const Shape w = geometry().weight(xs[0]);
    const double weights = double(w.size()) / split.channel, s = double(size_of(t));
    const Work once{.flops = 2.0 * double(y.size()) * double(w.sample()),
                    .bytes = s * (double(x.size()) + double(y.size()) + weights)};
    const double parameters = weights + (o_.bias ? double(y.c) : 0);
    return {.forward = once,
            .input_grad = once,
            .weight_grad = once,
            .parameters = parameters,
            .messages = {{Collective::all_reduce, Pass::weight_grad, s * parameters,
                          split.batch * split.height * split.width, true}}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    kernel_ = site.backend().conv(geometry(), xs[0]);
    const Communicator replicas = site.along(Axis::batch | Axis::height | Axis::width);
    const Shape w = geometry().weight(xs[0].whole);
    const double bound = 1 / std::sqrt(double(w.sample()));
    const double fan_out = double(o_.channels * o_.kernel.h * o_.kernel.w) / double(o_.groups);
    w_ = {.name = "weight",
          .dims = {w.n, w.c, w.h, w.w},
          .form = kernel_->w,
          .initial = o_.he_normal ? Initial{Initial::Kind::normal, std::sqrt(2 / fan_out)}
                                  : Initial{Initial::Kind::uniform, bound},
          .replicas = replicas};
    b_ = {.name = "bias",
          .dims = {o_.channels},
          .form = kernel_->b,
          .initial = {o_.he_normal ? Initial::Kind::constant : Initial::Kind::uniform,
                      o_.he_normal ? 0 : bound},
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
  ConvGeometry geometry() const {
    return {o_.channels, o_.kernel, o_.stride, o_.pad, o_.dilation, o_.groups, o_.bias};
  }

  Options o_;
  std::unique_ptr<WeightedKernel> kernel_;
  Parameter w_, b_;
};

}  // namespace lamina
