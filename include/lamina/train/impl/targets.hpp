// Where the targets are loaded and where they are wanted; how all ranks learn what the loss found.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/targets.hpp>

#include <cmath>

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

LAMINA_INLINE void Targets::load(Stream& stream, const void* from) const {
  put_bytes(stream, from, loaded_);
}

LAMINA_INLINE void PendingOutcome::ask(const View& found, const View& loss_scale, Stream& stream) {
  get_bytes(stream, found, found_->numbers);
  found_->scales = bool(loss_scale);
  if (loss_scale) get_bytes(stream, loss_scale, &found_->loss_scale);
  event_ = stream.event();
}

LAMINA_INLINE PendingOutcome::~PendingOutcome() {
  try {
    event_.wait();
  } catch (...) {  // whoever wanted to know has asked
  }
}

LAMINA_INLINE Outcome PendingOutcome::get() const {
  event_.wait();
  const auto& n = found_->numbers;
  const int resize = int(n[4] / Outcome::unit);
  const double rest = n[4] - resize * Outcome::unit, stops = std::floor(rest);
  Outcome o{n[0], n[1], n[2], n[3], stops > 0, resize, rest == stops};
  if (found_->scales) o.loss_scale = found_->loss_scale;
  return o;
}

}  // namespace lamina
