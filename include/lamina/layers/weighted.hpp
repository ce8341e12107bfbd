// WeightedLayer: what Conv2D and Linear share: weights, their gradients, and what is sent when
// samples, channels or rows are cut.
#pragma once

#include <lamina/layers/edge.hpp>
#include <lamina/layers/halo.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = w x + b in some sense, with w {k, c, ...}: k output and c input channels.
///
/// split            forward                        backward
/// batch                                           all-reduce dw, db   behind the layers below
/// height, width    halo of x (edge.hpp)           halo of dx          behind the dw kernel
///                                                 all-reduce dw, db   behind the layers below
/// channel                                         all-reduce dx       behind the dw kernel
/// input            all-reduce y
///
/// So a layer that is split by channel and the next one by input need one collective forward and
/// one backward between them.
class WeightedLayer : public Layer {
 public:
  Axis splits() const override {
    return Axis::batch | Axis::channel | Axis::input | Axis::height | Axis::width;
  }
  Blocks input_blocks(std::size_t, std::span<const Shape> xs, const Split& split,
                      int ranks) const override {
    return Blocks::of(xs[0], split, input_axes(), ranks);
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    Stream& s = context.stream;
    const View& x = overlaps_ ? halo_.start(s, xs[0]) : halo_.gather(s, xs[0]);
    // The bias joins in once: where the first input channels are.
    const View& b = first_input_ || !b_.value ? b_.value : no_bias_.view();
    const View& sum = summed_ ? summed_->y.view() : y;
    kernel_->forward(s, x, w_.value, b, sum);
    if (overlaps_) {
      const View& whole = halo_.finish(s, xs[0]);
      for (Edge& edge : edges_) edge.forward(s, whole, w_.value, b, sum);
    }
    sums_.all_reduce(s, Pass::forward, sum).wait(s);
    if (summed_) summed_->to_plain->forward(s, summed_->y, y);
  }

  void backward(Context& context, std::span<const View> xs, const View&, const View& given,
                std::span<const View> dxs) override {
    Stream& s = context.stream;
    if (summed_) summed_->to_plain->input_grad(s, {}, {}, given, summed_->y);
    const View& dy = summed_ ? summed_->y.view() : given;
    Pending total;
    if (dxs[0]) {
      const View& dx = halo_.gradient(dxs[0]);
      kernel_->input_grad(s, w_.value, dy, dx);
      total = partials_.all_reduce(s, Pass::input_grad, dx);
    }
    // One of the two travels while dw is computed: parts of dx, or its halo.
    const bool parts = partials_.size() > 1;
    if (dxs[0] && !parts) halo_.start_fold(s, dxs[0]);
    kernel_->weight_grad(s, halo_.kept(xs[0]), dy, w_.grad, b_.grad);
    w_.reduce(s), b_.reduce(s);
    total.wait(s);
    if (dxs[0] && parts) halo_.start_fold(s, dxs[0]);
    if (dxs[0]) halo_.finish_fold(s, dxs[0]);
  }

  std::vector<Parameter*> parameters() override {
    return has_bias() ? std::vector{&w_, &b_} : std::vector{&w_};
  }

 protected:
  virtual bool has_bias() const = 0;
  /// The axes that cut x; along all others ranks hold copies of it.
  virtual Axis input_axes() const { return Axis::batch | Axis::input | Axis::height | Axis::width; }

  /// The cost without halos. x and y are the largest parts that a rank holds, and `weights` counts
  /// those that it holds of w: each is multiplied once for every position of y.
  Cost cost_of(const Shape& x, const Shape& y, double weights, const Split& split, DType t) const {
    const double s = double(size_of(t)), parameters = weights + (has_bias() ? double(y.c) : 0);
    const Work once{.flops = 2 * weights * double(y.n * y.h * y.w),
                    .bytes = s * (double(x.size()) + double(y.size()) + weights)};
    Cost cost{.forward = once,
              .input_grad = once,
              .weight_grad = once,
              .parameters = parameters,
              .messages = {{Collective::all_reduce, Pass::weight_grad, s * parameters,
                            split.ways(replica_axes), true}}};
    if (split.channel > 1 && copies_x())
      cost.messages.push_back(
          {Collective::all_reduce, Pass::input_grad, s * double(x.size()), split.channel, true});
    if (split.input > 1)
      cost.messages.push_back(
          {Collective::all_reduce, Pass::forward, s * double(y.size()), split.input, false});
    return cost;
  }

  /// To be called by place(), with the halo made and a kernel for halo().x(xs[0]): places what is
  /// sent. `w` is the shape of the weights across all ranks, `dims` as files hold it.
  Placement finish(const Site& site, const Shape& w, std::vector<std::int64_t> dims,
                   Initial weights, Initial bias) {
    const Split& split = site.split();
    const Place& at = site.place();
    if (copies_x()) partials_ = site.along(Axis::channel);
    sums_ = site.along(Axis::input);
    first_input_ = at.input == 0;
    halo_.prepare(site.backend(), kernel_->inputs[0],
                  partials_.size() > 1 && !agree(partials_, kernel_->inputs[0]));

    const Communicator replicas = site.along(replica_axes);
    if (!agree(replicas, kernel_->w)) kernel_->take_plain_weights();
    const Part k = part(w.n, split.channel, at.channel), c = part(w.c, split.input, at.input);
    w_ = {.name = "weight",
          .dims = std::move(dims),
          .form = kernel_->w,
          .whole = w,
          .block = {k, c, {0, w.h}, {0, w.w}},
          .initial = weights,
          .replicas = replicas};
    b_ = {.name = "bias",
          .dims = {w.n},
          .form = kernel_->b,
          .whole = {1, w.n, 1, 1},
          .block = {{0, 1}, k, {0, 1}, {0, 1}},
          .initial = bias,
          .decay = false,
          .replicas = replicas};
    if (has_bias() && !first_input_) no_bias_ = Tensor(kernel_->b);

    Placement p = placed(*kernel_);
    p.inputs = {halo_.outside()};
    p.reads_x = !halo_.keeps();
    if (sums_.size() > 1 && !agree(sums_, kernel_->output)) {
      summed_ = std::make_unique<Summed>();
      summed_->y = Tensor(kernel_->output);
      p.output.layout = {};
      summed_->to_plain = site.backend().reorder(kernel_->output, p.output);
      p.workspace += summed_->y.bytes();
    }
    p.workspace += halo_.workspace() + no_bias_.bytes();
    p.messages = halo_.waiting();
    return p;
  }

  std::unique_ptr<WeightedKernel> kernel_;
  Halo halo_;
  /// Rows of y that are computed anew when the halo of x has come; only where overlaps_.
  std::vector<Edge> edges_;
  bool overlaps_ = false;

 private:
  static constexpr Axis replica_axes = Axis::batch | Axis::height | Axis::width;
  /// Whether ranks that share the channels of y hold copies of x, and so parts of dx.
  bool copies_x() const { return !contains(input_axes(), Axis::channel); }

  /// y as the kernel writes it, where ranks that add up theirs have it in different layouts.
  struct Summed {
    Tensor y;
    std::unique_ptr<UnaryKernel> to_plain;
  };

  Parameter w_, b_;
  Communicator partials_, sums_;  // ranks that each have a part of dx; of y
  bool first_input_ = true;
  Tensor no_bias_;
  std::unique_ptr<Summed> summed_;
};

}  // namespace lamina
