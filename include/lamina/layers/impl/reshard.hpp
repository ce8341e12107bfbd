// How reshards are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/reshard.hpp>

namespace lamina {

LAMINA_INLINE Cost Reshard::cost(std::span<const Shape>, const Split&, DType t) const {
  const Work copy{.bytes = double(size_of(t)) * double(held_.largest() + wanted_.largest())};
  const double there = Exchange::most_sent(held_, wanted_, t);
  const double back = Exchange::most_sent(wanted_, held_, t);
  return {.forward = copy,
          .input_grad = copy,
          .messages = {{Collective::halo, Pass::forward, there, Axis::batch},
                       {Collective::halo, Pass::input_grad, back, Axis::batch}}};
}

LAMINA_INLINE Placement Reshard::place(std::span<const Spec> xs, const Site& site) const {
  auto placed = std::make_unique<Placed>();
  const Form x{xs[0].shape, xs[0].dtype, {}};
  const Backend* backend = &site.backend();
  placed->there = Exchange(held_, wanted_, x.dtype, site.ranks(), backend);
  if (xs[0].has_gradient) placed->back = Exchange(wanted_, held_, x.dtype, site.ranks(), backend);
  Placement p;
  p.output = {wanted_.box[std::size_t(site.ranks().rank())].shape(), x.dtype, {}};
  p.inputs = {x};
  p.reads_x = false;
  p.workspace = p.messages = placed->there.workspace() + placed->back.workspace();
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
