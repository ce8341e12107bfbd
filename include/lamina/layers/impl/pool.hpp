// How pools are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/alias.hpp>
#include <lamina/layers/pool.hpp>

namespace lamina {

LAMINA_INLINE Shape PoolLayer::output(std::span<const Shape> xs) const {
  const Shape& x = only(xs);
  const PoolGeometry g = geometry(x);
  check(g.window.h > 0 && g.window.w > 0, "window must be positive");
  check(g.stride.h > 0 && g.stride.w > 0, "stride must be positive");
  check(g.pad.top >= 0 && g.pad.left >= 0 && g.pad.bottom >= 0 && g.pad.right >= 0,
        "pad must not be negative");
  check(g.pad.top < g.window.h && g.pad.bottom < g.window.h && g.pad.left < g.window.w &&
            g.pad.right < g.window.w,
        "pad must be smaller than the window ", g.window.h, 'x', g.window.w);
  const Shape y = g.output(x);
  check(y.h > 0 && y.w > 0, "window ", g.window.h, 'x', g.window.w,
        " does not fit into the padded input ", x);
  PoolGeometry within = g;  // the padded input
  within.ceil = false;
  check(g.kind == PoolGeometry::Kind::max || !g.count_padding || within.output(x) == y,
        "ceil: the last window reaches beyond the padded input ", x,
        ", and would count what is not there: expected count_padding = false, or more pad");
  return y;
}

LAMINA_INLINE Cost PoolLayer::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const PoolGeometry g = geometry(only(xs));
  if (identity(g)) return {};
  const double x = double(split.of_output(xs[0]).size()), s = double(size_of(t));
  const double y = double(split.of_output(output(xs)).size());
  const double window = double(g.window.h * g.window.w) * y;
  Cost cost{.forward = {window, s * (x + y)}, .input_grad = {window, s * (x + y)}};
  if (g.kind == PoolGeometry::Kind::max)  // backward also reads where the maximum was
    cost.input_grad = {y, s * (x + 2 * y)};
  cost.messages = Halo::messages(input_blocks(0, xs, split, split.ways()), halo_blocks(xs, split),
                                 t, split, halo_axes());
  return cost;
}

LAMINA_INLINE Placement PoolLayer::place(std::span<const Spec> xs, const Site& site) const {
  const Shape& whole = xs[0].whole;
  PoolGeometry g = geometry(whole);
  if (identity(g)) return place_alias(xs[0], xs[0]);
  const Split& split = site.split();
  const std::array shapes{whole};
  auto placed = std::make_unique<PlacedUnary>();
  placed->halo = Halo(input_blocks(0, shapes, split, split.ways()), halo_blocks(shapes, split),
                      xs[0], site, PoolLayer::halo_axes());
  const Box y = output_blocks(shapes, split, split.ways()).box[std::size_t(site.ranks().rank())];
  const auto [rows, columns] = reached(g, whole, y);
  g.pad = {rows.before, columns.before, rows.after, columns.after};
  placed->kernel = site.backend().pool(g, placed->halo.x(xs[0]));
  return finish(site, std::move(placed));
}

LAMINA_INLINE std::string PoolLayer::describe(Pair window, Pair stride, Pad pad) {
  std::string s = text(window.h, 'x', window.w);
  if (stride != Pair(1)) s += text(" s", stride.h);
  if (pad != Pad(0)) s += text(" p", pad.top);
  return s;
}

LAMINA_INLINE std::array<Reach, 2> PoolLayer::reached(const PoolGeometry& g, const Shape& x,
                                                      const Box& y) {
  const auto of = [](Part part, std::int64_t positions, std::int64_t window, std::int64_t stride,
                     std::int64_t before, std::int64_t after, std::int64_t extent) {
    const Reach r = reach(part, window, stride, 1, before, extent);
    return part.size < positions ? r : Reach{{0, extent}, before, after};
  };
  const Shape all = g.output(x);
  return {of(y.h, all.h, g.window.h, g.stride.h, g.pad.top, g.pad.bottom, x.h),
          of(y.w, all.w, g.window.w, g.stride.w, g.pad.left, g.pad.right, x.w)};
}

LAMINA_INLINE Blocks PoolLayer::halo_blocks(std::span<const Shape> xs, const Split& split) const {
  Blocks blocks = input_blocks(0, xs, split, split.ways());
  const Blocks y = output_blocks(xs, split, split.ways());
  for (std::size_t r = 0; r < blocks.box.size(); ++r) {
    const auto [rows, columns] = reached(geometry(xs[0]), xs[0], y.box[r]);
    blocks.box[r].h = rows.rows, blocks.box[r].w = columns.rows;
  }
  return blocks;
}

}  // namespace lamina
