// How blocks move between ranks.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/exchange.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace lamina {

namespace detail::parts {

/// The first element of a box that lies in one run; -1 for others.
inline std::int64_t only_run(const Box& box, const Box& block) {
  std::int64_t run = box.w.size;  // as for_runs has it
  if (box.w.size == block.w.size) {
    run *= box.h.size;
    if (box.h.size == block.h.size)
      run *= box.c.size * (box.c.size == block.c.size ? box.n.size : 1);
  }
  return run == box.size() ? block.offset(box.n.begin, box.c.begin, box.h.begin, box.w.begin) : -1;
}

/// Elements of the buffer that one takes which waits.
inline std::int64_t room(const Box& box) { return (box.size() + 15) / 16 * 16; }

/// Whether any two of them do.
inline bool overlap(std::vector<Box> boxes) {
  // In order along the axis on which they begin at the most places, each meets few others.
  Part Box::*along = &Box::n;
  std::size_t most = 0;
  for (Part Box::*axis : {&Box::n, &Box::c, &Box::h, &Box::w}) {
    std::set<std::int64_t> places;
    for (const Box& b : boxes) places.insert((b.*axis).begin);
    if (places.size() > most) most = places.size(), along = axis;
  }
  std::ranges::sort(boxes, {}, [along](const Box& b) { return (b.*along).begin; });
  for (std::size_t i = 0; i < boxes.size(); ++i)
    for (std::size_t j = i + 1;
         j < boxes.size() && (boxes[j].*along).begin < (boxes[i].*along).end(); ++j)
      if (!common(boxes[i], boxes[j]).empty()) return true;
  return false;
}

/// Whether what a rank wants is not made of these blocks of it side by side.
inline bool adds(const Box& wanted, std::vector<Box> blocks) {
  std::int64_t elements = 0;
  for (const Box& b : blocks) elements += b.size();
  return elements != wanted.size() || overlap(std::move(blocks));
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
  std::vector<char> busy(static_cast<std::size_t>(n));  // by distance around the ring
  int idle = n;                                         // of those
  std::vector<Box> given;
  const auto add_distance = [&](int from, int to) {
    char& at = busy[std::size_t(to < from ? to - from + n : to - from)];
    idle -= !std::exchange(at, true);
  };
  const auto add = [&](const Copies& have, const Copies& want, const Box& box) {
    if (have.ranks.size() == 1 && have.ranks[0] != me) {  // most: only how far counts
      for (std::size_t i = 0; i < want.ranks.size() && idle > 0; ++i)
        add_distance(have.ranks[0], want.ranks[i]);
    } else {
      for (const int to : want.ranks) {
        const int from = have.nearest(to);
        add_distance(from, to);
        if (from == me && to != me) out_.push_back({.box = box, .peer = to});
      }
    }
    if (!std::ranges::binary_search(want.ranks, me)) return;
    in_.push_back({.box = box, .peer = have.nearest(me)}), given.push_back(box);
  };
  each_overlap(copies_of(held), copies_of(wanted), add);
  adds_ = detail::parts::adds(wanted_, std::move(given));

  // Pieces that cannot go from or to where they are get room in one buffer.
  std::vector<Piece*> packed;
  std::int64_t elements = 0;
  const auto settle = [&](Piece& p, const Box& block, bool may_be_direct) {
    p.first = may_be_direct ? detail::parts::only_run(p.box, block) : -1;
    p.direct = p.first >= 0;
    if (p.direct) return;
    packed.push_back(&p);
    elements += detail::parts::room(p.box);
  };
  for (Piece& p : out_) settle(p, held_, true);
  for (Piece& p : in_)
    if (p.peer != me) settle(p, wanted_, !adds_);
  MemorySpace& memory = backend_ ? backend_->memory() : host_memory();
  if (elements > 0) buffer_ = Tensor(detail::parts::flat(elements, dtype), memory);
  std::size_t at = 0;
  for (Piece* p : packed) {
    p->packed = buffer_.view().at(at, detail::parts::flat(p->box.size(), dtype));
    at += std::size_t(detail::parts::room(p->box)) * size_of(dtype);
  }
  moves_.reserve(std::max(out_.size(), in_.size() + 1));

  std::vector<Round> mine(busy.size());
  for (std::size_t i = 0; i < out_.size(); ++i)
    mine[std::size_t((out_[i].peer - me + n) % n)].to = int(i);
  for (std::size_t i = 0; i < in_.size(); ++i)
    mine[std::size_t((me - in_[i].peer + n) % n)].from = int(i);
  for (int shift = 1; shift < n; ++shift)
    if (busy[std::size_t(shift)]) rounds_.push_back(mine[std::size_t(shift)]);
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
  check(held.layout.plain() && wanted.layout.plain(),
        "an exchange of blocks that do not lie plain: ", held.form(), " to ", wanted.form());
  const auto place = [&](const Piece& p, const View& block) {
    if (!p.direct) return p.packed;
    return block.at(std::size_t(p.first) * size_of(dtype_),
                    detail::parts::flat(p.box.size(), dtype_));
  };
  for (const Piece& p : out_)
    if (!p.direct) moves_.push_back({held, held_, p.packed, p.box, p.box});
  move(stream, pass, "pack");
  const bool on_device = backend_ && !backend_->memory().on_host();
  const View nothing(nullptr, detail::parts::flat(0, dtype_),
                     on_device ? &backend_->memory() : nullptr);
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

LAMINA_INLINE std::vector<Exchange::Load> Exchange::loads(const Blocks& held,
                                                          const Blocks& wanted) {
  struct Given {
    const Copies* by;
    Box box;
  };
  const std::vector<Copies> have = copies_of(held), want = copies_of(wanted);
  std::vector<std::vector<Given>> given(want.size());
  each_overlap(have, want, [&](const Copies& by, const Copies& to, const Box& box) {
    given[std::size_t(&to - want.data())].push_back({&by, box});
  });
  std::vector<Load> loads(held.box.size());
  for (std::size_t w = 0; w < want.size(); ++w) {
    std::vector<Box> boxes;
    for (const Given& g : given[w]) boxes.push_back(g.box);
    const bool adds = detail::parts::adds(want[w].box, std::move(boxes));
    for (const int to : want[w].ranks) loads[std::size_t(to)].adds = adds;
    for (const Given& g : given[w]) {
      const bool direct = !adds && detail::parts::only_run(g.box, want[w].box) >= 0;
      const std::int64_t room = detail::parts::room(g.box);
      const std::int64_t out = detail::parts::only_run(g.box, g.by->box) >= 0 ? 0 : room;
      for (const int to : want[w].ranks) {
        Load& load = loads[std::size_t(to)];
        ++load.pieces;
        const int from = g.by->nearest(to);
        if (from == to) continue;
        load.direct += direct, load.in += direct ? 0 : room;
        loads[std::size_t(from)].out += out;
      }
    }
  }
  return loads;
}

LAMINA_INLINE double Exchange::most_sent(const Blocks& held, const Blocks& wanted, DType dtype) {
  std::vector<std::int64_t> elements(held.box.size());  // that each rank sends
  each_overlap(copies_of(held), copies_of(wanted),
               [&](const Copies& have, const Copies& want, const Box& box) {
                 for (const int to : want.ranks)
                   if (const int from = have.nearest(to); from != to)
                     elements[std::size_t(from)] += box.size();
               });
  return double(*std::ranges::max_element(elements)) * double(size_of(dtype));
}

}  // namespace lamina
