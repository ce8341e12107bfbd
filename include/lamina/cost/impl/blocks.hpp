// Which block of a value each rank holds.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/blocks.hpp>

#include <algorithm>
#include <map>

namespace lamina {

LAMINA_INLINE Blocks Blocks::of(const Shape& whole, const Split& split, Axis axes, int ranks) {
  Blocks blocks{whole, std::vector<Box>(std::size_t(ranks)),
                std::vector<int>(std::size_t(ranks), -1)};
  const auto parts = [&](std::int64_t extent, Axis axis) {
    std::vector<Part> all(std::size_t(split.ways(axis)), Part{0, extent});
    for (int i = 0; contains(axes, axis) && i < int(all.size()); ++i)
      all[std::size_t(i)] = split.part(axis, extent, i);
    return all;
  };
  const bool by_input = contains(axes, Axis::input);
  const auto n = parts(whole.n, Axis::batch), h = parts(whole.h, Axis::height),
             w = parts(whole.w, Axis::width),
             c = parts(whole.c, by_input ? Axis::input : Axis::channel);
  // As Split::place and Split::number have it, without a division for each rank.
  Place at;
  const auto next = [](int& along, int ways) { return along = along + 1 < ways ? along + 1 : 0; };
  for (int r = 0, active = std::min(ranks, split.ways()); r < active; ++r) {
    const auto along_c = std::size_t(by_input ? at.input : at.channel);
    blocks.box[std::size_t(r)] = {n[std::size_t(at.batch)], c[along_c], h[std::size_t(at.height)],
                                  w[std::size_t(at.width)]};
    blocks.number[std::size_t(r)] = split.number(at, axes);
    if (next(at.input, split.input) || next(at.channel, split.channel) ||
        next(at.width, split.width) || next(at.height, split.height))
      continue;
    ++at.batch;
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
  if (number == other.number) return true;
  std::map<int, int> there, back;
  for (std::size_t r = 0; r < number.size(); ++r) {
    const int a = number[r], b = other.number[r];
    if (there.try_emplace(a, b).first->second != b || back.try_emplace(b, a).first->second != a)
      return false;
  }
  return true;
}

LAMINA_INLINE bool Blocks::same(const Blocks& other) const {
  return box == other.box && number_alike(other);
}

LAMINA_INLINE std::vector<Copies> copies_of(const Blocks& blocks) {
  std::vector<int> ranks;  // that hold something, those with the same block side by side
  const auto number = [&](int r) { return blocks.number[std::size_t(r)]; };
  for (int r = 0; r < blocks.ranks(); ++r)
    if (number(r) >= 0) ranks.push_back(r);
  std::ranges::stable_sort(ranks, {}, number);
  std::vector<Copies> all;
  int last = -1;
  for (const int r : ranks) {
    if (number(r) != last) all.push_back({blocks.box[std::size_t(r)], {}});
    all.back().ranks.push_back(r), last = number(r);
  }
  return all;
}

}  // namespace lamina
