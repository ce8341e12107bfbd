// Where the targets are loaded and where they are wanted; how all ranks learn what the loss found.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/targets.hpp>

#include <cstring>

namespace lamina {

LAMINA_INLINE Targets::Targets(const PlacedNetwork& network) {
  const PlaceOptions& o = network.placing();
  const Step& loss = network.steps().back();
  const int ranks = o.ranks.size();
  const auto me = std::size_t(o.ranks.rank());
  const Form whole = loss.layer->targets(loss.input_shapes);
  const Blocks loaded = Blocks::of(whole.shape, o.splits[0], Axis::batch, ranks);
  const Blocks wanted = loss.layer->target_blocks(loss.input_shapes, o.splits.back(), ranks);
  MemorySpace& memory = o.backend->memory();
  loaded_ = Tensor(loaded.box[me].shape(), whole.dtype, memory);
  moves_ = !loaded.same(wanted);
  if (!moves_) return;
  exchange_ = Exchange(loaded, wanted, whole.dtype, o.ranks, o.backend.get());
  wanted_ = Tensor(wanted.box[me].shape(), whole.dtype, memory);
}

LAMINA_INLINE void Targets::load(const void* from) const {
  copy_bytes({const_cast<void*>(from), loaded_.view().form()}, loaded_);
}

LAMINA_INLINE Outcome outcome(const PlacedNetwork& network, Stream& stream, bool stop) {
  const PlaceOptions& o = network.placing();
  const Step& loss = network.steps().back();
  check(loss.layer && loss.layer->is_loss(), "the network ends in ", loss.name,
        ": expected a loss, SoftmaxCrossEntropy");
  double found[5] = {};
  const View sum(found, {{1, 5, 1, 1}, DType::f64, {}});
  const bool all_know = o.splits.back().ways() == o.ranks.size() || stream.silent();
  if (loss.active() && (all_know || o.ranks.rank() == 0)) copy_bytes(loss.buffers.y, sum);
  if (!all_know) {
    if (!loss.active()) found[4] = stop;
    o.ranks.all_reduce(stream, Pass::forward, sum).wait(stream);
  }
  return {found[0], found[1], found[2], found[3], found[4] > 0};
}

}  // namespace lamina
