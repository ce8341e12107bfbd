// How global pools are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/global_avg_pool.hpp>

#include <utility>

namespace lamina {

LAMINA_INLINE Cost GlobalAvgPool::cost(std::span<const Shape> xs, const Split& split,
                                       DType t) const {
  const Shape part = split.of_output(only(xs));
  if (xs[0].h * xs[0].w == 1) return {};
  const double x = double(part.size()), y = double(part.n * part.c), s = double(size_of(t));
  Cost cost{.forward = {x, s * (x + y)}, .input_grad = {x, s * (x + y)}};
  if (split.ways(sum_axes) > 1)
    cost.messages = {{Collective::all_reduce, Pass::forward, s * y, sum_axes}};
  return cost;
}

LAMINA_INLINE Placement GlobalAvgPool::place(std::span<const Spec> xs, const Site& site) const {
  const Communicator sums = site.along(sum_axes);
  if (sums.size() == 1) return PoolLayer::place(xs, site);
  // What other ranks have counts as padding here, so that the parts of the mean add up.
  const Shape &whole = xs[0].whole, &x = xs[0].shape;
  PoolGeometry g = geometry(whole);
  g.pad = {0, 0, whole.h - x.h, whole.w - x.w};
  g.count_padding = true;
  auto placed = std::make_unique<Placed>();
  placed->sums = sums;
  placed->kernel = site.backend().pool(g, xs[0]);
  if (!sums.alike(placed->kernel->output)) {
    placed->kernel = site.backend().pool(g, {x, xs[0].dtype, {}});
    check(sums.alike(placed->kernel->output),
          "ranks that sum y have it in unlike layouts, this one in ", placed->kernel->output);
  }
  return finish(site, std::move(placed));
}

}  // namespace lamina
