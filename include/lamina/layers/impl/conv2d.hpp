// How convolutions are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/conv2d.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace lamina {

LAMINA_INLINE Conv2D::Conv2D(Options o) : o_(std::move(o)) {
  check(o_.channels > 0, "channels must be positive, got ", o_.channels);
  check(o_.groups > 0, "groups must be positive, got ", o_.groups);
  check(o_.kernel.h > 0 && o_.kernel.w > 0, "kernel must be positive");
  check(o_.stride.h > 0 && o_.stride.w > 0, "stride must be positive");
  check(o_.dilation.h > 0 && o_.dilation.w > 0, "dilation must be positive");
  check(o_.pad.top >= 0 && o_.pad.left >= 0 && o_.pad.bottom >= 0 && o_.pad.right >= 0,
        "pad must not be negative");
}

LAMINA_INLINE std::string Conv2D::describe() const {
  std::string s = text(o_.channels, ' ', o_.kernel.h, 'x', o_.kernel.w);
  if (o_.stride != Pair(1)) s += text(" s", o_.stride.h);
  if (o_.pad != Pad(0)) s += text(" p", o_.pad.top);
  if (o_.dilation != Pair(1)) s += text(" d", o_.dilation.h);
  if (o_.groups != 1) s += text(" g", o_.groups);
  return s;
}

LAMINA_INLINE std::string Conv2D::options() const {
  return text(o_.channels, ' ', o_.kernel, " stride ", o_.stride, " pad ", o_.pad, " dilation ",
              o_.dilation, " groups ", o_.groups, o_.bias ? "" : " no bias",
              o_.he_normal ? " he" : "");
}

LAMINA_INLINE Shape Conv2D::output(std::span<const Shape> xs) const {
  const Shape& x = only(xs);
  check(x.c % o_.groups == 0 && o_.channels % o_.groups == 0, "groups ", o_.groups,
        " must divide the input channels ", x.c, " and the output channels ", o_.channels);
  const Shape y = geometry().output(x);
  check(y.h > 0 && y.w > 0, "kernel ", o_.kernel.h, 'x', o_.kernel.w,
        " does not fit into the padded input ", x);
  return y;
}

LAMINA_INLINE Axis Conv2D::splits() const {
  return o_.groups > 1 ? all_but_input : WeightedLayer::splits();
}

LAMINA_INLINE std::string_view Conv2D::limit(Axis axis, std::span<const Shape>) const {
  if (o_.groups == 1) return {};
  if (axis == Axis::channel) return "its groups are cut, each with its channels of x and y";
  return axis == Axis::input ? "a group's channels of x go with its channels of y" : "";
}

LAMINA_INLINE void Conv2D::check_split(std::span<const Shape> xs, const Split& split, bool) const {
  for (const Box& box : halo_blocks(xs, split).box)
    check(!box.empty(), "split ", split, ": some rows or columns of y see padding only");
}

LAMINA_INLINE double Conv2D::inside(const Shape& x, const Shape& y) const {
  const auto along = [](std::int64_t extent, std::int64_t outputs, std::int64_t window,
                        std::int64_t stride, std::int64_t pad, std::int64_t dilation) {
    // How many outputs lie before the one of which this tap meets x at `position` or behind it.
    const auto before = [&](std::int64_t position) {
      return std::clamp((position + stride - 1) / stride, std::int64_t(0), outputs);
    };
    std::int64_t taps = 0;
    for (std::int64_t k = 0; k < window; ++k) {
      const std::int64_t first = pad - k * dilation;
      taps += before(std::max(first + extent, std::int64_t(0))) -
              before(std::max(first, std::int64_t(0)));
    }
    return double(taps) / double(outputs * window);
  };
  return along(x.h, y.h, o_.kernel.h, o_.stride.h, o_.pad.top, o_.dilation.h) *
         along(x.w, y.w, o_.kernel.w, o_.stride.w, o_.pad.left, o_.dilation.w);
}

LAMINA_INLINE Cost Conv2D::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  Shape x = split.of_input(only(xs)), y = split.of_output(output(xs));
  if (o_.groups > 1) {
    const std::int64_t groups = split.largest(Axis::channel, o_.groups);
    x.c = groups * (xs[0].c / o_.groups), y.c = groups * (o_.channels / o_.groups);
  }
  const Shape w = geometry().weight(xs[0]);
  const double weights = double(y.c) * double(split.largest(Axis::input, w.c) * w.h * w.w);
  const Blocks seen = halo_blocks(xs, split);
  Cost cost = cost_of(x, y, weights, std::max(x.size(), seen.largest()), split, t);
  const double outside = 1 - inside(xs[0], output(xs));
  for (Work* pass : {&cost.forward, &cost.recompute, &cost.input_grad, &cost.weight_grad})
    pass->padding = pass->flops * outside;
  for (const Message& m :
       Halo::messages(input_blocks(0, xs, split, split.ways()), seen, t, split, halo_axes()))
    cost.messages.push_back(m);
  return cost;
}

LAMINA_INLINE Placement Conv2D::place_with(const Epilogue& e, std::span<const Spec> xs,
                                           const Site& site) const {
  const std::array whole{xs[0].whole};
  const int ranks = site.split().ways();
  const Blocks held = input_blocks(0, whole, site.split(), ranks);
  const Blocks wanted = halo_blocks(whole, site.split());
  auto layer = std::make_unique<PlacedWeighted>();
  PlacedWeighted& placed = *layer;
  placed.halo = Halo(held, wanted, xs[0], site, halo_axes());

  ConvGeometry g = geometry();
  const Box y = output_blocks(whole, site.split(), ranks).box[std::size_t(site.ranks().rank())];
  const Reach rows = reach_rows(y.h, whole[0].h), columns = reach_columns(y.w, whole[0].w);
  g.pad = {rows.before, columns.before, rows.after, columns.after};
  g.channels = y.c.size;
  if (o_.groups > 1) g.groups = site.part(Axis::channel, o_.groups).size;
  g.bias = wants_bias(e);
  const Epilogue its = e.unscaled();
  placed.kernel = site.constant_weights()
                      ? site.backend().conv_forward(g, placed.halo.x(xs[0]), its)
                      : site.backend().conv(g, placed.halo.x(xs[0]), its);

  const Shape w = geometry().weight(xs[0].whole);
  const double bound = 1 / std::sqrt(double(w.sample()));
  const double fan_out = double(o_.channels * o_.kernel.h * o_.kernel.w) / double(o_.groups);
  const Initial uniform{Initial::Kind::uniform, bound};
  Placement p =
      finish(e, site, std::move(layer), w, y.c, {w.n, w.c, w.h, w.w},
             o_.he_normal ? Initial{Initial::Kind::normal, std::sqrt(2 / fan_out)} : uniform,
             o_.he_normal ? Initial{} : uniform);
  if (!e.add && placed.halo.prepare_overlap(site.backend()))
    place_edges(site.backend(), its, g, y.h, rows.rows, whole[0].h, placed, p);
  return p;
}

LAMINA_INLINE void Conv2D::place_edges(const Backend& backend, const Epilogue& e, ConvGeometry g,
                                       Part y, Part x, std::int64_t h, PlacedWeighted& placed,
                                       Placement& p) const {
  const Halo& halo = placed.halo;
  const auto begin = [&](std::int64_t row) { return row * o_.stride.h - o_.pad.top; };
  const std::int64_t window = (o_.kernel.h - 1) * o_.dilation.h + 1;
  const Part own{x.begin + halo.above(), x.size - halo.above() - halo.below()};
  std::int64_t first = 0, last = 0;
  while (halo.above() > 0 && first < y.size && begin(y.begin + first) < own.begin) ++first;
  while (halo.below() > 0 && last < y.size && begin(y.end() - 1 - last) + window > own.end())
    ++last;
  if (4 * (first + last) > y.size) return;  // too much would be computed twice
  const Form whole = halo.x({});
  for (const Part rows : {Part{y.begin, first}, Part{y.end() - last, last}}) {
    if (rows.size == 0) continue;
    const Reach r = reach(rows, o_.kernel.h, o_.stride.h, o_.dilation.h, o_.pad.top, h);
    g.pad.top = r.before, g.pad.bottom = r.after;
    placed.edges.push_back({});
    if (r.rows.size == 0) return placed.edges.clear();
    const Part at{r.rows.begin - x.begin, r.rows.size};
    if (!placed.edges.back().place(backend, g, e, whole, at, *placed.kernel, rows.begin - y.begin))
      return placed.edges.clear();
  }
  placed.overlaps = true;
  for (const Edge& edge : placed.edges) {
    p.workspace += edge.workspace();
    p.scratch = std::max(p.scratch, edge.scratch());
  }
}

LAMINA_INLINE Reach Conv2D::reach_rows(Part y, std::int64_t h) const {
  if (y.begin == 0 && y.size == output_rows(h)) return {{0, h}, o_.pad.top, o_.pad.bottom};
  return reach(y, o_.kernel.h, o_.stride.h, o_.dilation.h, o_.pad.top, h);
}

LAMINA_INLINE Reach Conv2D::reach_columns(Part y, std::int64_t w) const {
  if (y.begin == 0 && y.size == output_columns(w)) return {{0, w}, o_.pad.left, o_.pad.right};
  return reach(y, o_.kernel.w, o_.stride.w, o_.dilation.w, o_.pad.left, w);
}

LAMINA_INLINE std::int64_t Conv2D::output_rows(std::int64_t h) const {
  return window_positions(h, o_.pad.top, o_.pad.bottom, (o_.kernel.h - 1) * o_.dilation.h + 1,
                          o_.stride.h);
}

LAMINA_INLINE std::int64_t Conv2D::output_columns(std::int64_t w) const {
  return window_positions(w, o_.pad.left, o_.pad.right, (o_.kernel.w - 1) * o_.dilation.w + 1,
                          o_.stride.w);
}

LAMINA_INLINE Blocks Conv2D::input_blocks(std::size_t i, std::span<const Shape> xs,
                                          const Split& split, int ranks) const {
  return o_.groups > 1 ? of_groups(xs[i], split, ranks)
                       : WeightedLayer::input_blocks(i, xs, split, ranks);
}

LAMINA_INLINE Blocks Conv2D::output_blocks(std::span<const Shape> xs, const Split& split,
                                           int ranks) const {
  return o_.groups > 1 ? of_groups(output(xs), split, ranks)
                       : WeightedLayer::output_blocks(xs, split, ranks);
}

LAMINA_INLINE Blocks Conv2D::of_groups(const Shape& whole, const Split& split, int ranks) const {
  Blocks blocks = Blocks::of({whole.n, o_.groups, whole.h, whole.w}, split, all_but_input, ranks);
  blocks.whole = whole;
  const std::int64_t channels = whole.c / o_.groups;
  for (Box& b : blocks.box) b.c = {b.c.begin * channels, b.c.size * channels};
  return blocks;
}

LAMINA_INLINE Blocks Conv2D::halo_blocks(std::span<const Shape> xs, const Split& split) const {
  Blocks blocks = input_blocks(0, xs, split, split.ways());
  const Blocks y = output_blocks(xs, split, split.ways());
  for (std::size_t r = 0; r < blocks.box.size(); ++r) {
    blocks.box[r].h = reach_rows(y.box[r].h, xs[0].h).rows;
    blocks.box[r].w = reach_columns(y.box[r].w, xs[0].w).rows;
  }
  return blocks;
}

}  // namespace lamina
