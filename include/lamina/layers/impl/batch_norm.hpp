// How batch norm is placed, and what it costs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/batch_norm.hpp>

#include <cmath>

namespace lamina {

LAMINA_INLINE BatchNorm::BatchNorm(Options o) : o_(o) {
  check(o_.epsilon > 0, "epsilon must be positive, got ", o_.epsilon);
  check(o_.momentum >= 0 && o_.momentum <= 1, "momentum must be in [0, 1], got ", o_.momentum);
}

LAMINA_INLINE void BatchNorm::check_split(std::span<const Shape> xs, const Split& split,
                                          bool training) const {
  if (!training) return;
  Shape seen = only(xs);
  if (!o_.global) seen.n = split.smallest(Axis::batch, seen.n);
  const bool whole = seen == xs[0];
  check(seen.n * seen.h * seen.w > 1, whole ? "" : text("split ", split, ": "),
        "batch norm needs more than one value per channel, got ", whole ? "input " : "", seen,
        whole ? "" : " on a rank");
}

LAMINA_INLINE Cost BatchNorm::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const Shape x = split.of_output(only(xs));
  const double n = double(x.size()), s = double(size_of(t)), c = double(x.c);
  // Backward reads x and dy for the sums, then x and dy again for dx.
  Cost cost{.forward = {7 * n, 3 * s * n},
            .recompute = {2 * n, 2 * s * n},
            .input_grad = {7 * n, 3 * s * n},
            .weight_grad = {4 * n, 2 * s * n}};
  if (o_.affine) {
    cost.parameters = 2 * c;
    cost.messages.push_back({Collective::all_reduce, Pass::weight_grad, 2 * c * s, replica_axes});
  }
  if (o_.global || split.ways(group_axes()) > 1)
    for (Pass pass : {Pass::forward, Pass::input_grad})
      cost.messages.push_back({Collective::all_reduce, pass, 2 * c * 8, group_axes(), true});
  return cost;
}

/// Both backward passes read signs, a bit for each element; but where the gradient of what is added
/// is wanted, the first writes that, which is all that the second needs.
LAMINA_INLINE Cost BatchNorm::epilogue_cost(const Epilogue& e, const Shape& y, DType t) const {
  Cost cost = Layer::epilogue_cost(e, y, t);
  if (!e.activation) return cost;
  const double n = double(y.size()), bytes = n * double(size_of(t)), signs = n / 8;
  cost.forward.bytes += signs;
  cost.weight_grad = {n, signs + (e.add ? bytes : 0)}, cost.input_grad = {0, e.add ? 0 : signs};
  return cost;
}

LAMINA_INLINE Placement BatchNorm::place_with(const Epilogue& e, std::span<const Spec> xs,
                                              const Site& site) const {
  auto placed = std::make_unique<Placed>(o_, e);
  placed->kernel = site.backend().batch_norm(xs[0], e);
  const Communicator replicas = site.along(replica_axes);
  placed->group = site.along(group_axes());
  placed->has_dx = xs[0].has_gradient;
  placed->variants = o_.global || !site.training() ? Communicator() : site.along(Axis::batch);
  const Shape &x = xs[0].shape, &whole = xs[0].whole;
  const Form vector{{1, x.c, 1, 1}, site.precision().statistics, {}},
      wide{{1, x.c, 1, 1}, DType::f64, {}};
  MemorySpace& memory = site.backend().memory();
  placed->mean = Tensor(wide, memory), placed->inv_std = Tensor(wide, memory);
  placed->sums = Tensor({1, 2 * x.c, 1, 1}, DType::f64, memory);
  const Shape seen{o_.global ? whole.n : x.n, x.c, whole.h, whole.w};
  placed->count = double(seen.n * seen.h * seen.w);

  const Part channels = site.part(Axis::channel, whole.c);
  const auto vector_of = [&](const char* name, double value, bool trained) {
    return Parameter{.name = name,
                     .dims = {whole.c},
                     .form = vector,
                     .whole = {1, whole.c, 1, 1},
                     .block = {{0, 1}, channels, {0, 1}, {0, 1}},
                     .initial = {Initial::Kind::constant, value},
                     .trained = trained,
                     .decay = false,
                     .replicas = replicas,
                     .variants = placed->variants};
  };
  placed->w = vector_of("weight", o_.scale, true), placed->b = vector_of("bias", 0, true);
  placed->running_mean = vector_of("running_mean", 0, false);
  placed->running_var = vector_of("running_var", 1, false);
  Placement p = placement_of(*placed->kernel);
  p.writes_added = e.add && e.activation;
  p.adds_gradients = p.writes_added && placed->kernel->adds_gradients;
  if (e.activation && site.training()) placed->signs = Tensor(placed->kernel->signs, memory);
  for (const Tensor* t : {&placed->mean, &placed->inv_std, &placed->sums, &placed->signs})
    p.workspace += t->bytes();
  p.layer = std::move(placed);
  return p;
}

/// As the kernels do it: y = (x - mean) * inv_std * w + b.
LAMINA_INLINE ChannelScale BatchNorm::Placed::channel_scale(const Backend& backend) const {
  const auto values = [&](const Parameter& p) {
    const Tensor t(p.form.shape, DType::f64);
    backend.copy(p.value, t);
    const auto all = t.elements<double>();
    return std::vector<double>(all.begin(), all.end());
  };
  ChannelScale by{.scale = values(running_var), .shift = values(running_mean)};
  const std::vector<double> none, weight = o.affine ? values(w) : none,
                                  bias = o.affine ? values(b) : none;
  for (std::size_t c = 0; c < by.scale.size(); ++c) {
    by.scale[c] = (o.affine ? weight[c] : 1) / std::sqrt(by.scale[c] + o.epsilon);
    by.shift[c] = (o.affine ? bias[c] : 0) - by.shift[c] * by.scale[c];
  }
  return by;
}

}  // namespace lamina
