// How blocks move between ranks.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/exchange.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

namespace detail::parts {

/// The first element of a box that lies in one run; -1 for others.
inline std::int64_t only_run(const Box& box, const Box& block) {
  std::int64_t runs = 0, first = -1;
  for_runs(box, block, box, [&](std::int64_t at, auto, auto) { first = runs++ ? -1 : at; });
  return first;
}

inline Form flat(std::int64_t elements, DType t) { return {{1, elements, 1, 1}, t, {}}; }

}  // namespace detail::parts

LAMINA_INLINE Exchange::Exchange(const Blocks& held, const Blocks& wanted, DType dtype,
                                 Communicator ranks, const Backend* backend)
    : dtype_(dtype), ranks_(std::move(ranks)), backend_(backend) {
  const int n = ranks_.size(), me = ranks_.rank();
  check(held.ranks() == n && wanted.ranks() == n, "an exchange among ", n, " ranks got blocks of ",
        held.ranks(), " and ", wanted.ranks());
  held_ = held.box[std::size_t(me)], wanted_ = wanted.box[std::size_t(me)];
  std::vector<bool> busy(std::size_t(n), false);  // by distance between the ranks
  std::int64_t covered = 0;
  for (int to = 0; to < n; ++to)
    for (const Move& m : moves_to(held, wanted, to)) {
      busy[std::size_t((to - m.peer + n) % n)] = true;
      if (m.peer == me && to != me) out_.push_back({.box = m.box, .peer = to});
      if (to != me) continue;
      for (const Piece& p : in_) adds_ |= !common(p.box, m.box).empty();
      in_.push_back({.box = m.box, .peer = m.peer});
      covered += m.box.size();
    }
  adds_ |= covered < wanted_.size();

  // Pieces that cannot go from or to where they are get room in one buffer.
  std::vector<Piece*> packed;
  std::int64_t elements = 0;
  const auto settle = [&](Piece& p, const Box& block, bool may_be_direct) {
    p.first = may_be_direct ? detail::parts::only_run(p.box, block) : -1;
    p.direct = p.first >= 0;
    if (p.direct) return;
    packed.push_back(&p);
    elements += (p.box.size() + 15) / 16 * 16;
  };
  for (Piece& p : out_) settle(p, held_, true);
  for (Piece& p : in_)
    if (p.peer != me) settle(p, wanted_, !adds_);
  MemorySpace& memory = backend_ ? backend_->memory() : host_memory();
  if (elements > 0) buffer_ = Tensor(detail::parts::flat(elements, dtype), memory);
  std::size_t at = 0;
  for (Piece* p : packed) {
    p->packed = buffer_.view().at(at, detail::parts::flat(p->box.size(), dtype));
    at += std::size_t((p->box.size() + 15) / 16 * 16) * size_of(dtype);
  }
  moves_.reserve(std::max(out_.size(), in_.size() + 1));

  for (int shift = 1; shift < n; ++shift) {
    if (!busy[std::size_t(shift)]) continue;
    Round round;
    for (std::size_t i = 0; i < out_.size(); ++i)
      if (out_[i].peer == (me + shift) % n) round.to = int(i);
    for (std::size_t i = 0; i < in_.size(); ++i)
      if (in_[i].peer == (me - shift + n) % n) round.from = int(i);
    rounds_.push_back(round);
  }
  pending_.resize(rounds_.size());
}

LAMINA_INLINE void Exchange::move(Stream& stream, Pass pass, const char* what) {
  if (moves_.empty()) return;
  if (backend_)
    backend_->move(stream, pass, what, moves_);
  else
    stream.run(pass, what, [&] { move_boxes(moves_); });
  moves_.clear();
}

LAMINA_INLINE void Exchange::start(Stream& stream, Pass pass, const View& held,
                                   const View& wanted) {
  const auto place = [&](const Piece& p, const View& block) {
    if (!p.direct) return p.packed;
    return block.at(std::size_t(p.first) * size_of(dtype_),
                    detail::parts::flat(p.box.size(), dtype_));
  };
  for (const Piece& p : out_)
    if (!p.direct) moves_.push_back({held, held_, p.packed, p.box, p.box});
  move(stream, pass, "pack");
  const View nothing(nullptr, detail::parts::flat(0, dtype_));
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const Piece* out = rounds_[i].to >= 0 ? &out_[std::size_t(rounds_[i].to)] : nullptr;
    const Piece* in = rounds_[i].from >= 0 ? &in_[std::size_t(rounds_[i].from)] : nullptr;
    pending_[i] =
        ranks_.exchange(stream, pass, out ? place(*out, held) : nothing, out ? out->peer : -1,
                        in ? place(*in, wanted) : nothing, in ? in->peer : -1);
  }
}

LAMINA_INLINE bool Exchange::apart() const {
  const auto waits = [&](const Piece& p) { return p.peer == ranks_.rank() || !p.direct; };
  return !adds_ && !in_.empty() && std::all_of(in_.begin(), in_.end(), waits);
}

LAMINA_INLINE void Exchange::preview(Stream& stream, Pass pass, const View& held,
                                     const View& wanted) {
  previewed_ = true;
  for (const Piece& p : in_)
    if (p.peer == ranks_.rank())
      moves_.push_back({held, held_, wanted, wanted_, p.box});
    else
      moves_.push_back({{}, {}, wanted, wanted_, p.box});
  move(stream, pass, "copy");
}

LAMINA_INLINE void Exchange::finish(Stream& stream, Pass pass, const View& held,
                                    const View& wanted) {
  const auto own = [&](const Piece& p) { return p.peer == ranks_.rank(); };
  if (!adds_ && !std::exchange(previewed_, false))  // while the others travel
    for (const Piece& p : in_)
      if (own(p)) moves_.push_back({held, held_, wanted, wanted_, p.box});
  move(stream, pass, "copy");
  for (Pending& p : pending_) p.wait(stream);
  if (!wanted) return;
  if (adds_) moves_.push_back({{}, {}, wanted, wanted_, wanted_});
  for (const Piece& p : in_) {
    if (adds_ && own(p))
      moves_.push_back({held, held_, wanted, wanted_, p.box, true});
    else if (!own(p) && !p.direct)
      moves_.push_back({p.packed, p.box, wanted, wanted_, p.box, adds_});
  }
  move(stream, pass, "unpack");
}

LAMINA_INLINE double Exchange::most_sent(const Blocks& held, const Blocks& wanted, DType dtype) {
  std::vector<std::int64_t> elements(held.box.size());  // that each rank sends
  for (int to = 0; to < held.ranks(); ++to)
    for (const Move& m : moves_to(held, wanted, to))
      if (m.peer != to) elements[std::size_t(m.peer)] += m.box.size();
  return double(*std::ranges::max_element(elements)) * double(size_of(dtype));
}

}  // namespace lamina
