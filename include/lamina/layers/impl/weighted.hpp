// How layers with weights are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/weighted.hpp>

#include <utility>

namespace lamina {

LAMINA_INLINE Blocks WeightedLayer::input_blocks(std::size_t, std::span<const Shape> xs,
                                                 const Split& split, int ranks) const {
  return Blocks::of(xs[0], split, input_axes(), ranks);
}

LAMINA_INLINE Cost WeightedLayer::cost_of(const Shape& x, const Shape& y, double weights,
                                          std::int64_t dx, const Split& split, DType t) const {
  const double s = double(size_of(t)), parameters = weights + (has_bias() ? double(y.c) : 0);
  const Work once{.flops = 2 * weights * double(y.n * y.h * y.w),
                  .bytes = s * (double(x.size()) + double(y.size()) + weights)};
  Cost cost{
      .forward = once,
      .input_grad = once,
      .weight_grad = once,
      .parameters = parameters,
      .messages = {{Collective::all_reduce, Pass::weight_grad, s * parameters, replica_axes}}};
  if (split.channel > 1 && copies_x())
    cost.messages.push_back(
        {Collective::all_reduce, Pass::input_grad, s * double(dx), Axis::channel});
  if (split.input > 1)
    cost.messages.push_back(
        {Collective::all_reduce, Pass::forward, s * double(y.size()), Axis::input});
  return cost;
}

LAMINA_INLINE Placement WeightedLayer::finish(const Site& site,
                                              std::unique_ptr<PlacedWeighted> placed,
                                              const Shape& w, Part k,
                                              std::vector<std::int64_t> dims, Initial weights,
                                              Initial bias) const {
  WeightedKernel& kernel = *placed->kernel;
  MemorySpace& memory = site.backend().memory();
  Halo& halo = placed->halo;
  if (copies_x()) placed->partials = site.along(Axis::channel);
  placed->sums = site.along(Axis::input);
  placed->first_input = site.place().input == 0;
  halo.prepare(site.backend(), kernel.inputs[0], !placed->partials.alike(kernel.inputs[0]));

  const Communicator replicas = site.along(replica_axes);
  if (!replicas.alike(kernel.w)) kernel.take_plain_weights();
  const Part c = site.part(Axis::input, w.c);
  placed->weight = {.name = "weight",
                    .dims = std::move(dims),
                    .form = kernel.w,
                    .whole = w,
                    .block = {k, c, {0, w.h}, {0, w.w}},
                    .initial = weights,
                    .replicas = replicas};
  placed->bias = {.name = "bias",
                  .dims = {w.n},
                  .form = kernel.b,
                  .whole = {1, w.n, 1, 1},
                  .block = {{0, 1}, k, {0, 1}, {0, 1}},
                  .initial = bias,
                  .decay = false,
                  .replicas = replicas};
  placed->has_bias = has_bias();
  if (has_bias() && !placed->first_input) placed->no_bias = Tensor(kernel.b, memory);

  Placement p = placement_of(kernel);
  p.inputs = {halo.outside()};
  p.reads_x = !halo.keeps();
  if (!placed->sums.alike(kernel.output)) {
    placed->summed = std::make_unique<PlacedWeighted::Summed>();
    placed->summed->y = Tensor(kernel.output, memory);
    p.output.layout = {};
    placed->summed->to_plain = site.backend().reorder(kernel.output, p.output);
    p.workspace += placed->summed->y.bytes();
  }
  p.workspace += halo.workspace() + placed->no_bias.bytes();
  p.messages = halo.waiting();
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
