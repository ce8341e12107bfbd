// OwnPart: what a rank has of a layer, beside the rank that has most of it.
#pragma once

#include <lamina/network/step.hpp>

#include <algorithm>
#include <cstdint>

namespace lamina::detail::making {

/// What this rank has of a step: so many samples, and of each a part of what the rank has that has
/// most of it. It is the part of y, or where samples of y are whole, of the input.
struct OwnPart {
  std::int64_t samples;
  double of_sample;
};
inline OwnPart own_part(const Step& step, const PlaceOptions& placing) {
  const std::int64_t most_samples = step.split().largest(Axis::batch, step.input_shapes[0].n);
  if (!step.active()) return {most_samples, 0};
  if (step.kind == Step::Kind::reshard) return {most_samples, 1};
  const int ranks = placing.ranks.size();
  const auto of_sample = [](const Box& b) { return double(b.size()) / double(b.n.size); };
  const auto most_of = [&](const Blocks& blocks) {
    double most = 0;
    for (const Box& b : blocks.box)
      if (b.n.size > 0) most = std::max(most, of_sample(b));
    return most;
  };
  const Blocks blocks = most_of(step.blocks) < double(step.blocks.whole.sample())
                            ? step.blocks
                            : step.layer->input_blocks(0, step.input_shapes, step.split(), ranks);
  const double most = most_of(blocks);
  const Box& own = blocks.box[std::size_t(placing.ranks.rank())];
  if (most == 0 || own.n.size == 0) return {most_samples, 0};
  return {own.n.size, of_sample(own) / most};
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
