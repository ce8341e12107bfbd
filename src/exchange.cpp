// How blocks move between ranks.
#include <lamina/layers/exchange.hpp>

#include <utility>

namespace lamina {

namespace {

/// The elements of `box` within a plain block, run by run: work(offset in the block, offset in the
/// box, length).
template <class Work>
void for_runs(const Box& box, const Box& block, Work&& work) {
  const Shape b = block.shape();
  // Rows that are whole in the block join up with the next ones.
  std::int64_t length = box.w.size, rows = box.h.size, images = box.c.size, samples = box.n.size;
  if (box.w.size == b.w) {
    length *= rows, rows = 1;
    if (box.h.size == b.h) {
      length *= images, images = 1;
      if (box.c.size == b.c) length *= samples, samples = 1;
    }
  }
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < samples; ++n)
    for (std::int64_t c = 0; c < images; ++c)
      for (std::int64_t h = 0; h < rows; ++h, at += length) {
        const std::int64_t from =
            (((box.n.begin - block.n.begin + n) * b.c + box.c.begin - block.c.begin + c) * b.h +
             box.h.begin - block.h.begin + h) *
                b.w +
            box.w.begin - block.w.begin;
        work(from, at, length);
      }
}

/// The first element of a box that lies in one run; -1 for others.
std::int64_t only_run(const Box& box, const Box& block) {
  std::int64_t runs = 0, first = -1;
  for_runs(box, block, [&](std::int64_t from, auto, auto) { first = runs++ ? -1 : from; });
  return first;
}

void pack(const View& block, const Box& of, const Box& box, void* to) {
  const std::size_t size = size_of(block.dtype);
  for_runs(box, of, [&](std::int64_t from, std::int64_t at, std::int64_t length) {
    std::memcpy(static_cast<char*>(to) + std::size_t(at) * size,
                block.as<char>() + std::size_t(from) * size, std::size_t(length) * size);
  });
}

template <class T>
void unpack(const View& block, const Box& of, const Box& box, const void* from, bool add) {
  for_runs(box, of, [&](std::int64_t to, std::int64_t at, std::int64_t length) {
    T* y = block.as<T>() + to;
    const T* x = static_cast<const T*>(from) + at;
    if (add)
      for (std::int64_t i = 0; i < length; ++i) y[i] += x[i];
    else
      std::memcpy(y, x, std::size_t(length) * sizeof(T));
  });
}

void unpack(const View& block, const Box& of, const Box& box, const void* from, bool add) {
  if (block.dtype == DType::f32) return unpack<float>(block, of, box, from, add);
  if (block.dtype == DType::f64) return unpack<double>(block, of, box, from, add);
  return unpack<std::int32_t>(block, of, box, from, add);
}

/// The elements of `box`, from one block to another: without a stop where runs agree.
template <class Work>
void pair_runs(const Box& from_block, const Box& to_block, const Box& box, Work&& work) {
  for (std::int64_t n = 0; n < box.n.size; ++n)
    for (std::int64_t c = 0; c < box.c.size; ++c)
      for (std::int64_t h = 0; h < box.h.size; ++h) {
        const Box row{{box.n.begin + n, 1}, {box.c.begin + c, 1}, {box.h.begin + h, 1}, box.w};
        std::int64_t from = 0, to = 0;
        for_runs(row, from_block, [&](std::int64_t f, auto, auto) { from = f; });
        for_runs(row, to_block, [&](std::int64_t t, auto, auto) { to = t; });
        work(from, to, box.w.size);
      }
}

void copy(const View& x, const Box& from, const View& y, const Box& to, const Box& box) {
  const std::size_t size = size_of(x.dtype);
  pair_runs(from, to, box, [&](std::int64_t f, std::int64_t t, std::int64_t length) {
    std::memcpy(y.as<char>() + std::size_t(t) * size, x.as<char>() + std::size_t(f) * size,
                std::size_t(length) * size);
  });
}

template <class T>
void add(const View& x, const Box& from, const View& y, const Box& to, const Box& box) {
  pair_runs(from, to, box, [&](std::int64_t f, std::int64_t t, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) y.as<T>()[t + i] += x.as<T>()[f + i];
  });
}

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
      if (m.peer != me) received_ += double(m.box.size()) * double(size_of(dtype));
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
        if (!p.direct) pack(held, held_, p.box, p.packed.data);
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
        for_runs(p.box, wanted_, [&](std::int64_t at, auto, std::int64_t length) {
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
        if (own(p))
          add(held, held_, wanted, wanted_, p.box);
        else
          unpack(wanted, wanted_, p.box, p.packed.data, adds_);
      }
    });
}

double Exchange::most_received(const Blocks& held, const Blocks& wanted, DType dtype) {
  double most = 0;
  for (int to = 0; to < held.ranks(); ++to) {
    double bytes = 0;
    for (const Move& m : moves_to(held, wanted, to))
      if (m.peer != to) bytes += double(m.box.size()) * double(size_of(dtype));
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace lamina
