// WeightedLayer: what Conv2D and Linear share: weights, their gradients, and what is sent when
// samples, channels or rows are cut.
#pragma once

#include <lamina/layers/edge.hpp>
#include <lamina/layers/halo.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

struct PlacedWeighted;

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
  bool multiplies() const override { return true; }
  Axis splits() const override {
    return Axis::batch | Axis::channel | Axis::input | Axis::height | Axis::width;
  }
  Blocks input_blocks(std::size_t, std::span<const Shape> xs, const Split& split,
                      int ranks) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const final {
    return place_with({}, xs, site);
  }
  /// Under `input` y is complete only when the ranks have added it up.
  bool fuses(const Backend& backend, const Epilogue& e, const Split& split) const override {
    const Epilogue left = e.unscaled();
    return split.input == 1 && (!left || backend.fuses(kernel(), left));
  }

 protected:
  virtual Fusible kernel() const = 0;
  virtual bool has_bias() const = 0;
  /// The axes that cut x; along all others ranks hold copies of it.
  virtual Axis input_axes() const { return Axis::batch | Axis::input | Axis::height | Axis::width; }

  /// The cost without halos. x and y are the largest parts that a rank holds, and `weights` counts
  /// those that it holds of w: each is multiplied once for every position of y. `dx` counts the
  /// elements of dx that the parts of `channel` sum: those of x, and of its halos.
  Cost cost_of(const Shape& x, const Shape& y, double weights, std::int64_t dx, const Split& split,
               DType t) const;

  /// Whether its kernel takes a bias: that of the layer, or what an epilogue's scaling adds.
  bool wants_bias(const Epilogue& e) const { return has_bias() || e.scale; }

  /// To be called by place(), with the halo made and a kernel for halo.x(xs[0]): places what is
  /// sent. `w` is the shape of the weights across all ranks, `k` this rank's part of their output
  /// channels, `dims` as files hold them.
  Placement finish(const Epilogue& e, const Site& site, std::unique_ptr<PlacedWeighted> placed,
                   const Shape& w, Part k, std::vector<std::int64_t> dims, Initial weights,
                   Initial bias) const;

 private:
  static constexpr Axis replica_axes = Axis::batch | Axis::height | Axis::width;
  /// Whether ranks that share the channels of y hold copies of x, and so parts of dx.
  bool copies_x() const { return !contains(input_axes(), Axis::channel); }
};

/// What runs of a WeightedLayer.
struct PlacedWeighted : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    Stream& s = context.stream;
    const View& x = overlaps ? halo.start(s, xs[0]) : halo.gather(s, xs[0]);
    // The bias joins in once: where the first input channels are.
    const View& its = first_input || !bias.value ? bias.value : no_bias.view();
    const View& b = constants.b.view() ? constants.b.view() : its;
    const View& w = constants.w.view() ? constants.w.view() : weight.value;
    const View& sum = summed ? summed->y.view() : y;
    kernel->forward(s, x, w, b, sum, xs.size() > 1 ? xs[1] : View());
    if (overlaps) {
      const View& whole = halo.finish(s, xs[0]);
      for (Edge& edge : edges) edge.forward(s, whole, w, b, sum);
    }
    if (summed) summed->to_plain->forward(s, summed->y, y);
    sums.all_reduce(s, Pass::forward, y).wait(s);
  }

  void backward(Context& context, std::span<const View> xs, const View&, const View& given,
                std::span<const View> dxs) override {
    Stream& s = context.stream;
    if (summed) summed->to_plain->input_grad(s, {}, {}, given, summed->y);
    const View& dy = summed ? summed->y.view() : given;
    Pending total;
    if (dxs[0]) {
      kernel->input_grad(s, weight.value, dy, halo.gradient(dxs[0]));
      total = partials.all_reduce(s, Pass::input_grad, halo.outside_gradient(s, dxs[0]));
    }
    // One of the two travels while dw is computed: parts of dx, or its halo.
    const bool parts = partials.size() > 1;
    if (dxs[0] && !parts) halo.start_fold(s, dxs[0]);
    if (trains()) kernel->weight_grad(s, halo.kept(xs[0]), dy, weight.grad, bias.grad);
    weight.reduce(s), bias.reduce(s);
    total.wait(s);
    if (dxs[0] && parts) halo.start_fold(s, dxs[0]);
    if (dxs[0]) halo.finish_fold(s, dxs[0]);
  }

  void prepare(const Backend& backend, const ChannelScale& by) override;

  std::vector<Parameter*> parameters() override {
    return has_bias ? std::vector{&weight, &bias} : std::vector{&weight};
  }
  /// The kernel makes both gradients or none.
  bool writes_frozen(const Parameter&) const override { return trains(); }
  bool trains() const { return weight.trained || (has_bias && bias.trained); }

  /// y as the kernel writes it, where ranks that add up theirs have it in different layouts and so
  /// do it in plain.
  struct Summed {
    Tensor y;
    std::unique_ptr<UnaryKernel> to_plain;
  };

  /// In inference, what the kernel reads in place of the parameters, where these are scaled, or
  /// where it wants weights as nobody could read them back. Absent otherwise; so is a bias that is
  /// the parameter's.
  struct Constants {
    Tensor w, b;
  };

  std::unique_ptr<WeightedKernel> kernel;
  Constants constants;
  Halo halo;
  /// Rows of y that are computed anew when the halo of x has come; only where it `overlaps`.
  std::vector<Edge> edges;
  bool overlaps = false;
  Parameter weight, bias;
  bool has_bias = true;
  Communicator partials, sums;  ///< ranks that each have a part of dx; of y
  bool first_input = true;
  Tensor no_bias;
  std::unique_ptr<Summed> summed;
};

}  // namespace lamina
