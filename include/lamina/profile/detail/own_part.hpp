// OwnPart: what a rank has of a layer, beside the rank that has most of it.
#pragma once

#include <lamina/network/step.hpp>

#include <algorithm>
#include <cstdint>

namespace lamina::detail::making {

/// What this rank has of a step: so many samples, and of each a part of what the rank has that has
/// most of it.
struct OwnPart {
  std::int64_t samples;
  double of_sample;
};

/// Of one axis of blocks: the part that rank `rank` has of the longest one; 1 where none is cut.
inline double part_of_longest(const Blocks& blocks, int rank, Part Box::*axis) {
  std::int64_t longest = 0;
  for (const Box& b : blocks.box)
    if (!b.empty()) longest = std::max(longest, (b.*axis).size);
  return double((blocks.box[std::size_t(rank)].*axis).size) / double(longest);
}

/// Work is cut as y is, and along axes that y does not show, as x: where channels of the input are
/// added up, or rows and columns.
inline OwnPart own_part(const Step& step, const PlaceOptions& placing) {
  const int rank = placing.ranks.rank();
  const Split split = step.split();
  const std::int64_t most_samples = split.largest(Axis::batch, step.input_shapes[0].n);
  if (!step.active()) return {most_samples, 0};
  const Blocks &y = step.blocks,
               x = step.layer->input_blocks(0, step.input_shapes, split, placing.ranks.size());
  const Box &own = y.box[std::size_t(rank)], &taken = x.box[std::size_t(rank)];
  if (step.kind == Step::Kind::reshard)  // reads what it has, writes what it wants
    return {most_samples, double(own.size() + taken.size()) / double(x.largest() + y.largest())};
  if (own.empty()) return {most_samples, 0};
  const auto whole = [&](Part Box::*axis, std::int64_t size) {
    return std::ranges::all_of(y.box,
                               [&](const Box& b) { return b.empty() || (b.*axis).size == size; });
  };
  double part = 1;
  const auto count = [&](Part Box::*axis, std::int64_t size, bool also_x = false) {
    const bool y_is_whole = whole(axis, size);
    if (!y_is_whole) part *= part_of_longest(y, rank, axis);
    if ((y_is_whole || also_x) && !taken.empty()) part *= part_of_longest(x, rank, axis);
  };
  count(&Box::c, y.whole.c, split.input > 1), count(&Box::h, y.whole.h), count(&Box::w, y.whole.w);
  // A loss has no samples in y; a rank whose part of y is made of other inputs, or of none, has
  // none in x.
  return {taken.empty() ? own.n.size : taken.n.size, part};
}

/// The elements that this rank updates: where they are shared out, one rank like the others.
inline double updated_by(const Step& step) {
  double elements = 0;
  for (const Parameter* p : step.parameters())
    if (p->bucket)
      elements += double(p->size()) / (p->bucket->sharded ? p->bucket->ranks.size() : 1);
  return elements;
}

}  // namespace lamina::detail::making
