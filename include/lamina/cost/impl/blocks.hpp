// Which block of a value each rank holds.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/blocks.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE Blocks Blocks::of(const Shape& whole, const Split& split, Axis axes, int ranks) {
  Blocks blocks{whole, {}, {}};
  for (int r = 0; r < ranks; ++r) {
    if (r >= split.ways()) {
      blocks.box.push_back({}), blocks.number.push_back(-1);
      continue;
    }
    const Place at = split.place(r);
    blocks.number.push_back(split.number(at, axes));
    const auto cut = [&](std::int64_t extent, Axis axis) {
      return contains(axes, axis) ? split.part(axis, extent, at) : Part{0, extent};
    };
    Box box;
    box.n = cut(whole.n, Axis::batch);
    box.c = cut(whole.c, contains(axes, Axis::input) ? Axis::input : Axis::channel);
    box.h = cut(whole.h, Axis::height);
    box.w = cut(whole.w, Axis::width);
    blocks.box.push_back(box);
  }
  return blocks;
}

LAMINA_INLINE std::int64_t Blocks::largest() const {
  std::int64_t most = 0;
  for (const Box& b : box) most = std::max(most, b.size());
  return most;
}

LAMINA_INLINE Blocks Blocks::of_channels(Part channels) const {
  Blocks blocks = *this;
  blocks.whole.c = channels.size;
  for (std::size_t r = 0; r < box.size(); ++r) {
    Box& b = blocks.box[r];
    b.c = common(b.c, channels);
    b.c.begin -= channels.begin;
    if (b.empty()) b = {}, blocks.number[r] = -1;
  }
  return blocks;
}

LAMINA_INLINE Blocks Blocks::among(const std::vector<int>& members) const {
  Blocks some{whole, {}, {}};
  for (const int r : members)
    some.box.push_back(box[std::size_t(r)]), some.number.push_back(number[std::size_t(r)]);
  return some;
}

LAMINA_INLINE bool Blocks::number_alike(const Blocks& other) const {
  for (std::size_t a = 0; a < number.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if ((number[a] == number[b]) != (other.number[a] == other.number[b])) return false;
  return true;
}

LAMINA_INLINE bool Blocks::same(const Blocks& other) const {
  return box == other.box && number_alike(other);
}

LAMINA_INLINE std::vector<Move> moves_to(const Blocks& held, const Blocks& wanted, int to) {
  std::vector<Move> moves;
  const Box& target = wanted.box[std::size_t(to)];
  if (wanted.number[std::size_t(to)] < 0) return moves;
  const int most = *std::max_element(held.number.begin(), held.number.end());
  for (int number = 0; number <= most; ++number) {
    int best = -1;
    const auto far = [&](int r) { return r > to ? 2 * (r - to) - 1 : 2 * (to - r); };
    for (int r = 0; r < held.ranks(); ++r)
      if (held.number[std::size_t(r)] == number && (best < 0 || far(r) < far(best))) best = r;
    if (best < 0) continue;
    const Box box = common(held.box[std::size_t(best)], target);
    if (!box.empty()) moves.push_back({best, box});
  }
  return moves;
}

}  // namespace lamina
