// How layers with weights are placed, and what they cost.
#include <lamina/layers/weighted.hpp>

#include <utility>

namespace lamina {

Blocks WeightedLayer::input_blocks(std::size_t, std::span<const Shape> xs, const Split& split,
                                   int ranks) const {
  return Blocks::of(xs[0], split, input_axes(), ranks);
}

Cost WeightedLayer::cost_of(const Shape& x, const Shape& y, double weights, std::int64_t dx,
                            const Split& split, DType t) const {
  const double s = double(size_of(t)), parameters = weights + (has_bias() ? double(y.c) : 0);
  const Work once{.flops = 2 * weights * double(y.n * y.h * y.w),
                  .bytes = s * (double(x.size()) + double(y.size()) + weights)};
  Cost cost{.forward = once,
            .input_grad = once,
            .weight_grad = once,
            .parameters = parameters,
            .messages = {{Collective::all_reduce, Pass::weight_grad, s * parameters,
                          split.ways(replica_axes)}}};
  if (split.channel > 1 && copies_x())
    cost.messages.push_back(
        {Collective::all_reduce, Pass::input_grad, s * double(dx), split.channel});
  if (split.input > 1)
    cost.messages.push_back(
        {Collective::all_reduce, Pass::forward, s * double(y.size()), split.input});
  return cost;
}

Placement WeightedLayer::finish(const Site& site, const Shape& w, Part k,
                                std::vector<std::int64_t> dims, Initial weights, Initial bias) {
  if (copies_x()) partials_ = site.along(Axis::channel);
  sums_ = site.along(Axis::input);
  first_input_ = site.place().input == 0;
  halo_.prepare(site.backend(), kernel_->inputs[0],
                !partials_.alike(kernel_->inputs[0]));

  const Communicator replicas = site.along(replica_axes);
  if (!replicas.alike(kernel_->w)) kernel_->take_plain_weights();
  const Part c = part(w.c, site.split().input, site.place().input);
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
  if (!sums_.alike(kernel_->output)) {
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

std::vector<Parameter*> WeightedLayer::parameters() {
  return has_bias() ? std::vector{&w_, &b_} : std::vector{&w_};
}

}  // namespace lamina
