// How layers with one kernel are placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/unary.hpp>

#include <utility>

namespace lamina {

LAMINA_INLINE Placement UnaryLayer::place(std::span<const Spec> xs, const Site& site) const {
  auto placed = std::make_unique<PlacedUnary>();
  placed->kernel = make(site.backend(), xs[0]);
  return finish(site, std::move(placed));
}

LAMINA_INLINE Placement UnaryLayer::finish(const Site& site, std::unique_ptr<PlacedUnary> placed) {
  const UnaryKernel& kernel = *placed->kernel;
  Halo& halo = placed->halo;
  halo.prepare(site.backend(), kernel.inputs[0], false);
  Placement p = placement_of(kernel);
  p.inputs = {halo.outside()};
  p.reads_x = kernel.reads_x && !halo.keeps(), p.reads_y = kernel.reads_y;
  p.in_place = kernel.in_place && !halo.keeps();
  p.workspace += halo.workspace(), p.messages += halo.waiting();
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
