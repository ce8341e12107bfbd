// How layers with weights are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/plain_weights.hpp>
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

LAMINA_INLINE Placement WeightedLayer::finish(const Epilogue& e, const Site& site,
                                              std::unique_ptr<PlacedWeighted> placed,
                                              const Shape& w, Part k,
                                              std::vector<std::int64_t> dims, Initial weights,
                                              Initial bias) const {
  const std::unique_ptr<WeightedKernel>& kernel = placed->kernel;
  MemorySpace& memory = site.backend().memory();
  const DType stored = site.precision().weights;
  placed->first_input = site.place().input == 0;
  const bool constant =
      site.constant_weights() &&
      (e.scale || kernel->w.layout.fingerprint() == 0 || kernel->w.dtype != stored);
  if (constant) {
    placed->constants.w = Tensor(kernel->w, memory);
    if (wants_bias(e) && placed->first_input) placed->constants.b = Tensor(kernel->b, memory);
  }
  Halo& halo = placed->halo;
  if (copies_x()) placed->partials = site.along(Axis::channel);
  placed->sums = site.along(Axis::input);
  halo.prepare(site.backend(), kernel->inputs[0], !placed->partials.alike(kernel->inputs[0]));

  const Communicator replicas = site.along(replica_axes);
  const auto as_parameter = [&](const Form& form) {
    return constant ? Form{form.shape, stored, {}} : form;
  };
  // Asked by all, though those who keep constants have nothing to change.
  const bool alike = replicas.alike(as_parameter(kernel->w));
  if (!constant && (!alike || site.plain_weights()))
    placed->kernel =
        with_plain_weights(site.backend(), std::move(placed->kernel), site.precision().gradients);
  const Part c = site.part(Axis::input, w.c);
  placed->weight = {.name = "weight",
                    .dims = std::move(dims),
                    .form = as_parameter(kernel->w),
                    .whole = w,
                    .block = {k, c, {0, w.h}, {0, w.w}},
                    .initial = weights,
                    .replicas = replicas};
  placed->bias = {.name = "bias",
                  .dims = {w.n},
                  .form = as_parameter(kernel->b),
                  .whole = {1, w.n, 1, 1},
                  .block = {{0, 1}, k, {0, 1}, {0, 1}},
                  .initial = bias,
                  .decay = false,
                  .replicas = replicas};
  placed->has_bias = has_bias();
  if (has_bias() && !placed->first_input) placed->no_bias = Tensor(kernel->b, memory);

  Placement p = placement_of(*kernel);
  p.inputs[0] = halo.outside();
  p.reads_x = !halo.keeps(), p.over_added = kernel->over_added;
  if (!placed->sums.alike(kernel->output)) {
    placed->summed = std::make_unique<PlacedWeighted::Summed>();
    placed->summed->y = Tensor(kernel->output, memory);
    p.output.layout = {};
    placed->summed->to_plain = site.backend().reorder(kernel->output, p.output);
    p.workspace += placed->summed->y.bytes();
  }
  p.workspace += halo.workspace() + placed->no_bias.bytes() + placed->constants.w.bytes() +
                 placed->constants.b.bytes();
  p.messages = halo.waiting();
  p.layer = std::move(placed);
  return p;
}

/// On the host, in f32 at least; rounded once.
LAMINA_INLINE void PlacedWeighted::prepare(const Backend& backend, const ChannelScale& by) {
  if (!constants.w.view()) return;
  const auto plain = [](const Parameter& p, const Tensor& like) {
    return Tensor(like.view().shape, wide(p.form.dtype));
  };
  const Tensor w = plain(weight, constants.w);
  backend.copy(weight.value, w);
  const auto k = std::size_t(w.view().shape.n);
  if (constants.b.view()) {
    const Tensor b = plain(weight, constants.b);
    if (has_bias) backend.copy(bias.value, b);
    visit(b.view().dtype, [&]<Floating T>(T) {
      for (std::size_t i = 0; i < by.shift.size(); ++i)
        b.as<T>()[i] = T(double(b.as<T>()[i]) * by.scale[i] + by.shift[i]);
    });
    backend.copy(b, constants.b);
  }
  visit(w.view().dtype, [&]<Floating T>(T) {
    const std::size_t each = std::size_t(w.view().shape.size()) / k;
    for (std::size_t i = 0; i < by.scale.size(); ++i)
      for (T& v : std::span(w.as<T>() + i * each, each)) v = T(double(v) * by.scale[i]);
  });
  backend.copy(w, constants.w);
}

}  // namespace lamina
