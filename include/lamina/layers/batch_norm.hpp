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
  /// In training, a variance takes two values or more.
  void check_split(std::span<const Shape> xs, const Split& split, bool training) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    return place_with({}, xs, site);
  }
  /// In inference.
  std::optional<Epilogue> as_epilogue() const override { return Epilogue{.scale = true}; }
  bool fuses(const Backend& backend, const Epilogue& e, const Split&) const override {
    return !e.scale && backend.fuses(Fusible::batch_norm, e);
  }
  bool fuses_backward() const override { return true; }
  Cost epilogue_cost(const Epilogue& e, const Shape& y, DType t) const override;
  Placement place_with(const Epilogue& e, std::span<const Spec> xs,
                       const Site& site) const override;

 private:
  struct Placed;
  static constexpr Axis replica_axes = Axis::batch | Axis::height | Axis::width;
  /// Ranks that differ along these share statistics.
  Axis group_axes() const { return o_.global ? replica_axes : Axis::height | Axis::width; }

  Options o_;
};

struct BatchNorm::Placed final : PlacedLayer {
  Placed(Options options, const Epilogue& e) : o(options), epilogue(e) {}

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    Stream& s = context.stream;
    if (context.again) {
      // mean and inv_std are there still.
    } else if (context.training) {
      kernel->statistics(s, xs[0], sums);
      group.all_reduce(s, Pass::forward, sums).wait(s);
      kernel->finish(s, sums, count, o.epsilon, o.momentum, mean, inv_std, running_mean.value,
                     running_var.value);
    } else {
      kernel->running(s, running_mean.value, running_var.value, sums);
      variants.all_reduce(s, Pass::forward, sums).wait(s);
      kernel->from_running(s, sums, variants.size(), o.epsilon, mean, inv_std);
    }
    kernel->normalize(s, xs[0], mean, inv_std, w.value, b.value, y, epilogue.add ? xs[1] : View(),
                      signs);
  }

  void backward(Context& context, std::span<const View> xs, const View&, const View& dy,
                std::span<const View> dxs) override {
    Stream& s = context.stream;
    // What gets past the activation is kept where it is the gradient of what was added, too.
    const View kept = epilogue.add && epilogue.activation ? dxs[1] : View();
    kernel->gradients(s, xs[0], mean, inv_std, dy, sums, w.grad, b.grad, signs, kept, context.more);
    Pending total;
    if (has_dx) total = group.all_reduce(s, Pass::input_grad, sums);
    w.reduce(s), b.reduce(s);
    total.wait(s);
    if (dxs[0])
      kernel->input_grad(s, xs[0], mean, inv_std, w.value, kept ? kept : dy, sums, count, dxs[0],
                         kept ? View() : signs.view());
  }

  ChannelScale channel_scale(const Backend& backend) const override;

  std::vector<Parameter*> parameters() override {
    if (!o.affine) return {&running_mean, &running_var};
    return {&w, &b, &running_mean, &running_var};
  }
  bool writes_frozen(const Parameter&) const override { return false; }

  Options o;
  Epilogue epilogue;
  std::unique_ptr<NormKernel> kernel;
  Communicator group;     ///< the ranks that share statistics
  Communicator variants;  ///< those that have statistics of their own
  Parameter w, b, running_mean, running_var;
  Tensor mean, inv_std, sums, signs;
  double count = 0;
  bool has_dx = true;  ///< on all ranks, whether they have rows or not
};

}  // namespace lamina
