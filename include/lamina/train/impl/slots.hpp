// What of a network goes on, tensor by tensor.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/detail/slots.hpp>

#include <algorithm>
#include <utility>

namespace lamina::detail {

/// Of what ranks have values of their own of: one after the other.
inline Slot local_slot(const WholeParameter& p) {
  Slot slot{.name = text(local_prefix, p.name),
            .dims = {p.variants},
            .whole = {p.whole, p.dtype, {}},
            .blocks = p.blocks,
            .mine = p.mine ? p.mine->value : View(),
            .value = p.mine,
            .local = true,
            .together = true};
  slot.dims.insert(slot.dims.end(), p.dims.begin(), p.dims.end());
  slot.whole.shape.n *= p.variants;
  for (std::size_t r = 0; r < slot.blocks.size(); ++r)
    if (slot.held(int(r))) slot.blocks[r].n.begin += p.variant[r] * p.whole.n;
  return slot;
}

/// Of what workers have values of their own of, which all ranks know: a row for each.
inline Slot kept_slot(const WholeParameter& p, const View& kept) {
  Slot slot{.name = text(local_prefix, p.name),
            .dims = {kept.shape.n},
            .whole = kept.form(),
            .blocks = {Box::of(kept.shape)},
            .mine = kept,
            .local = true};
  slot.dims.insert(slot.dims.end(), p.dims.begin(), p.dims.end());
  return slot;
}

/// State number `i` of the optimizer, the last of which are master weights where it keeps those.
inline Slot state_slot(const PlacedNetwork& network, const WholeParameter& p, std::size_t i) {
  const DType t = network.placing().dtype.states;
  const bool in_parts = p.mine && p.mine->bucket && p.mine->bucket->sharded;
  Slot slot{.name = text("optimizer.", i, '/', p.name),
            .dims = p.dims,
            .whole = {p.whole, t, {}},
            .blocks = p.blocks,
            .mine = in_parts ? View(nullptr, p.mine->form_of(t))
                    : p.mine ? p.mine->states[i]
                             : View(),
            .in_parts = in_parts ? p.mine : nullptr,
            .state = i};
  slot.together = network.placing().shard_optimizer || !slot.held_whole(0);
  return slot;
}

/// What ranks have values of their own of becomes their mean, rounded once.
inline void average(const View& plain, const Communicator& variants, const Backend& backend) {
  const Tensor wide(plain.shape, DType::f64);
  backend.copy(plain, wide);
  Stream stream;
  variants.all_reduce(stream, Pass::update, wide).wait(stream);
  for (double& v : wide.elements<double>()) v /= variants.size();
  backend.copy(wide, plain);
}

LAMINA_INLINE std::vector<Slot> slots_of(const PlacedNetwork& network, bool with_states) {
  check(network.allocated(), "the network must be placed before it is saved or loaded");
  std::vector<Slot> slots;
  const Communicator& ranks = network.placing().ranks;
  const DType state = network.placing().dtype.states;
  const auto has_master = [&](const WholeParameter& p) {
    return p.trained && keeps_master(p.dtype, state);
  };
  std::size_t states = 0, masters = 0;  // of a parameter; whether there are any
  for (const WholeParameter& p : network.all_parameters()) {
    if (!p.mine || p.mine->states.empty()) continue;
    states = std::max(states, p.mine->states.size() - has_master(p));
    masters |= has_master(p);
  }
  states = ranks.all_reduce_value(states, ReduceOp::max);
  masters = ranks.all_reduce_value(masters, ReduceOp::max);
  for (const WholeParameter& p : network.all_parameters()) {
    std::int64_t size = 1;
    for (const std::int64_t d : p.dims) size *= d;
    check(size == p.whole.size(), p.name, ": its dims have ", size, " elements, its shape is ",
          p.whole);
    slots.push_back({.name = p.name,
                     .dims = p.dims,
                     .whole = {p.whole, p.dtype, {}},
                     .blocks = p.blocks,
                     .mine = p.mine ? p.mine->value : View(),
                     .value = p.mine,
                     .averaged = p.variants > 1 ? p.mine : nullptr});
    slots.back().together = !slots.back().held_whole(0) || p.variants > 1;
    if (masters == 0 || !has_master(p)) continue;
    Slot master = state_slot(network, p, states);
    master.name = p.name, master.value = p.mine;
    slots.back() = std::move(master);
  }
  for (std::size_t i = 0; with_states && i < states; ++i)
    for (const WholeParameter& p : network.all_parameters()) {
      if (!p.trained) continue;
      check(!p.mine || i < p.mine->states.size(), p.name, ": has no state ", i,
            " of the optimizer");
      slots.push_back(state_slot(network, p, i));
    }
  for (const WholeParameter& p : network.all_parameters()) {
    if (with_states && p.variants > 1) slots.push_back(local_slot(p));
    const View kept = with_states && p.mine ? network.kept_of(*p.mine) : View();
    if (kept) slots.push_back(kept_slot(p, kept));
  }
  // The format wants wide elements first.
  std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
    return size_of(a.whole.dtype) > size_of(b.whole.dtype);
  });
  return slots;
}

/// Those that share a bucket must agree on when it is gathered: also where rank 0 reads in between
/// what the others do not.
LAMINA_INLINE void SlotReader::see(const Slot& slot) {
  if (!slot.together) return;
  const Bucket* bucket = slot.in_parts ? slot.in_parts->bucket : nullptr;
  if (bucket == bucket_ && slot.state == state_) return;
  bucket_ = bucket, state_ = slot.state, all_ = Tensor();
  if (!bucket) return;
  all_ = Tensor({bucket->values.shape, bucket->state, {}}, network_.placing().backend->memory());
  Stream stream;
  const View& own = bucket->states[state_];
  bucket->ranks.all_gather(stream, Pass::update, own, all_).wait(stream);
  gathered_ += double(all_.bytes() - own.bytes());
}

LAMINA_INLINE View SlotReader::of(const Slot& slot) const {
  const auto at = std::size_t(slot.in_parts->at) * size_of(slot.mine.dtype);
  return all_.view().at(at, slot.mine);
}

LAMINA_INLINE void SlotReader::read(const Slot& slot, const View& plain) {
  const Backend& backend = *network_.placing().backend;
  see(slot);
  if (plain) backend.copy(slot.in_parts ? of(slot) : slot.mine, plain);
  if (slot.averaged) average(plain, *slot.averaged->variants, backend);
}

LAMINA_INLINE void write_slot(const Slot& slot, const PlacedNetwork& network, const View& plain) {
  const Backend& backend = *network.placing().backend;
  if (slot.value) return set_value(backend, *slot.value, plain);
  if (!slot.in_parts) return backend.copy(plain, slot.mine);
  set_own(backend, *slot.in_parts, plain, slot.in_parts->states[slot.state]);
}

}  // namespace lamina::detail
