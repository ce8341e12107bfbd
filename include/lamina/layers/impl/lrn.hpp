// How LRN is placed, and what it costs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/lrn.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace lamina {

LAMINA_INLINE LRN::LRN(Options o) : o_(o) {
  check(o_.size > 0 && o_.size % 2 == 1, "size must be positive and odd, got ", o_.size);
  check(o_.k > 0 && o_.alpha >= 0, "k must be positive and alpha not negative, got ", o_.k, " and ",
        o_.alpha);
}

// Forward: the square, `size` additions, scale, add k, power, multiply. Backward: the same sum
// over dy y / scale, and about as much around it. A power counts as one operation.
LAMINA_INLINE Cost LRN::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const double size = double(o_.size);
  const Blocks wide = halo_blocks(xs, split);
  Shape most = split.of_output(only(xs));
  for (const Box& box : wide.box) most.c = std::max(most.c, box.c.size);
  Cost cost = per_element(most, t, size + 5, 2 * size + 9);
  cost.messages =
      Halo::messages(input_blocks(0, xs, split, split.ways()), wide, t, split, halo_axes());
  return cost;
}

LAMINA_INLINE Placement LRN::place(std::span<const Spec> xs, const Site& site) const {
  const std::array whole{xs[0].whole};
  const Split& split = site.split();
  const Blocks held = input_blocks(0, whole, split, split.ways()), wide = halo_blocks(whole, split);
  auto layer = std::make_unique<Placed>();
  Placed& placed = *layer;
  placed.halo = Halo(held, wide, xs[0], site, halo_axes());
  placed.kernel = make(site.backend(), placed.halo.x(xs[0]));
  Placement p = finish(site, std::move(layer));
  if (!placed.halo.moves()) return p;
  const std::vector<int> me = {site.ranks().rank()};
  const Backend& backend = site.backend();
  placed.cut = Exchange(wide.among(me), held.among(me), xs[0].dtype, {}, &backend);
  placed.widen = Exchange(held.among(me), wide.among(me), xs[0].dtype, {}, &backend);
  const Form& made = placed.kernel->output;
  const Form plain{made.shape, made.dtype, {}};
  placed.wide = Tensor(plain, backend.memory());
  if (!made.layout.plain()) {
    placed.reorder = backend.reorder(plain, made);
    placed.reordered = Tensor(made, backend.memory());
  }
  p.output = xs[0].form(), p.output.layout = {};
  p.workspace += placed.wide.bytes() + placed.reordered.bytes();
  return p;
}

LAMINA_INLINE Blocks LRN::halo_blocks(std::span<const Shape> xs, const Split& split) const {
  Blocks blocks = input_blocks(0, xs, split, split.ways());
  for (Box& box : blocks.box) box.c = reach(box.c, o_.size, 1, 1, o_.size / 2, xs[0].c).rows;
  return blocks;
}

}  // namespace lamina
