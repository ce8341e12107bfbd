// How blocks move between ranks.
#include <lamina/layers/exchange.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

namespace {

/// The first element of a box that lies in one run; -1 for others.
std::int64_t only_run(const Box& box, const Box& block) {
  std::int64_t runs = 0, first = -1;
  for_runs(box, block, box, [&](std::int64_t at, auto, auto) { first = runs++ ? -1 : at; });
  return first;
}

/// The elements of `box`, from the block `from` in x to the block `to` in y.
void copy(const View& x, const Box& from, const View& y, const Box& to, const Box& box) {
  const std::size_t size = size_of(x.dtype);
  for_runs(box, from, to, [&](std::int64_t f, std::int64_t t, std::int64_t length) {
    std::memcpy(y.as<char>() + std::size_t(t) * size, x.as<char>() + std::size_t(f) * size,
                std::size_t(length) * size);
  });
}

template <class T>
void add(const View& x, const Box& from, const View& y, const Box& to, const Box& box) {
  for_runs(box, from, to, [&](std::int64_t f, std::int64_t t, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) y.as<T>()[t + i] += x.as<T>()[f + i];
  });
}

/// The same, added to what is there.
void add(const View& x, const Box& from, const View& y, const Box& to, const Box& box) {
  if (x.dtype == DType::f32) return add<float>(x, from, y, to, box);
  if (x.dtype == DType::f64) return add<double>(x, from, y, to, box);
  add<std::int32_t>(x, from, y, to, box);
}

Form flat(std::int64_t elements, DType t) { return {{1, elements, 1, 1}, t, {}}; }

}  // namespace

Exchange::Exchange(const Blocks& held, const Blocks& wanted, DType dtype, Communicator ranks)
    : dtype_(dtype), ranks_(std::move(ranks)) {
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
    p.first = may_be_direct ? only_run(p.box, block) : -1;
    p.direct = p.first >= 0;
    if (p.direct) return;
    packed.push_back(&p);
    elements += (p.box.size() + 15) / 16 * 16;
  };
  for (Piece& p : out_) settle(p, held_, true);
  for (Piece& p : in_)
    if (p.peer != me) settle(p, wanted_, !adds_);
  if (elements > 0) buffer_ = Tensor(flat(elements, dtype));
  char* at = buffer_.as<char>();
  for (Piece* p : packed) {
    p->packed = View(at, flat(p->box.size(), dtype));
    at += std::size_t((p->box.size() + 15) / 16 * 16) * size_of(dtype);
  }

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

void Exchange::start(Stream& stream, Pass pass, const View& held, const View& wanted) {
  const auto place = [&](const Piece& p, const View& block) {
    if (!p.direct) return p.packed;
    return View(block.as<char>() + std::size_t(p.first) * size_of(dtype_),
                flat(p.box.size(), dtype_));
  };
  const auto packs = [](const Piece& p) { return !p.direct; };
  if (std::any_of(out_.begin(), out_.end(), packs))
    stream.run(pass, "pack", [&] {
      for (const Piece& p : out_)
        if (!p.direct) copy(held, held_, p.packed, p.box, p.box);
    });
  const View nothing(nullptr, flat(0, dtype_));
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const Piece* out = rounds_[i].to >= 0 ? &out_[std::size_t(rounds_[i].to)] : nullptr;
    const Piece* in = rounds_[i].from >= 0 ? &in_[std::size_t(rounds_[i].from)] : nullptr;
    pending_[i] =
        ranks_.exchange(stream, pass, out ? place(*out, held) : nothing, out ? out->peer : -1,
                        in ? place(*in, wanted) : nothing, in ? in->peer : -1);
  }
}

bool Exchange::apart() const {
  const auto waits = [&](const Piece& p) { return p.peer == ranks_.rank() || !p.direct; };
  return !adds_ && !in_.empty() && std::all_of(in_.begin(), in_.end(), waits);
}

void Exchange::preview(Stream& stream, Pass pass, const View& held, const View& wanted) {
  previewed_ = true;
  stream.run(pass, "copy", [&] {
    for (const Piece& p : in_)
      if (p.peer == ranks_.rank())
        copy(held, held_, wanted, wanted_, p.box);
      else
        for_runs(p.box, wanted_, p.box, [&](std::int64_t at, auto, std::int64_t length) {
          const std::size_t size = size_of(dtype_);
          std::memset(wanted.as<char>() + std::size_t(at) * size, 0, std::size_t(length) * size);
        });
  });
}

void Exchange::finish(Stream& stream, Pass pass, const View& held, const View& wanted) {
  const int me = ranks_.rank();
  const auto own = [&](const Piece& p) { return p.peer == me; };
  if (!adds_ && !std::exchange(previewed_, false) &&
      std::any_of(in_.begin(), in_.end(), own))  // while the others travel
    stream.run(pass, "copy", [&] {
      for (const Piece& p : in_)
        if (own(p)) copy(held, held_, wanted, wanted_, p.box);
    });
  for (Pending& p : pending_) p.wait(stream);
  if (!wanted || in_.empty()) {
    if (wanted) std::memset(wanted.data, 0, wanted.bytes());
    return;
  }
  const auto waits = [&](const Piece& p) { return adds_ || (!own(p) && !p.direct); };
  if (std::any_of(in_.begin(), in_.end(), waits))
    stream.run(pass, "unpack", [&] {
      if (adds_) std::memset(wanted.data, 0, wanted.bytes());
      for (const Piece& p : in_) {
        if (!waits(p)) continue;
        const View& x = own(p) ? held : p.packed;
        const Box& from = own(p) ? held_ : p.box;
        if (adds_)
          add(x, from, wanted, wanted_, p.box);
        else
          copy(x, from, wanted, wanted_, p.box);
      }
    });
}

double Exchange::most_sent(const Blocks& held, const Blocks& wanted, DType dtype) {
  std::vector<std::int64_t> elements(held.box.size());  // that each rank sends
  for (int to = 0; to < held.ranks(); ++to)
    for (const Move& m : moves_to(held, wanted, to))
      if (m.peer != to) elements[std::size_t(m.peer)] += m.box.size();
  return double(*std::ranges::max_element(elements)) * double(size_of(dtype));
}

}  // namespace lamina
