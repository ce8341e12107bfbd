// How a training goes over into a network that is placed otherwise.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/train/detail/slots.hpp>
#include <lamina/train/hand_over.hpp>

#include <algorithm>
#include <cstring>
#include <optional>

namespace lamina {

namespace detail {

inline constexpr std::int64_t longest_piece = 1 << 21;  // elements that are sent at a time

/// A tensor that both networks have.
struct Common {
  int before = 0, after = 0;  // numbers of its slots
  DType dtype = DType::f32;
  std::vector<Box> had = {}, wanted = {};  // by rank

  Box block_had(int rank) const { return of(had, rank); }
  Box block_wanted(int rank) const { return of(wanted, rank); }

 private:
  static Box of(const std::vector<Box>& boxes, int rank) {
    return rank < int(boxes.size()) ? boxes[std::size_t(rank)] : Box();
  }
};

/// What one rank has of it that another one wants, or itself.
struct Piece {
  Box box;
  int from = 0, to = 0;
};

/// As numbers, for those who do not have both networks.
inline void add(std::vector<std::int64_t>& numbers, const std::vector<Box>& boxes) {
  numbers.push_back(std::int64_t(boxes.size()));
  for (const Box& b : boxes)
    for (const Part p : {b.n, b.c, b.h, b.w}) numbers.push_back(p.begin), numbers.push_back(p.size);
}

inline std::vector<Box> take_boxes(const std::int64_t*& at) {
  std::vector<Box> boxes(std::size_t(*at++));
  for (Box& b : boxes)
    for (Part* p : {&b.n, &b.c, &b.h, &b.w}) p->begin = *at++, p->size = *at++;
  return boxes;
}

/// As rank 0 knows them, who has both networks.
inline std::vector<Common> common_to(const std::vector<Slot>& before,
                                     const std::vector<Slot>& after, const Communicator& ranks) {
  const std::string said = on_first(ranks, [&] {
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const Slot& slot = after[i];
      const auto same = std::ranges::find_if(
          before, [&](const Slot& s) { return s.name == slot.name && s.dims == slot.dims; });
      const bool had = same != before.end();
      check(had || slot.local, slot.name, ": the network before has no such tensor");
      if (!had) continue;
      numbers.insert(numbers.end(),
                     {same - before.begin(), std::int64_t(i), std::int64_t(slot.whole.dtype)});
      add(numbers, same->blocks), add(numbers, slot.blocks);
    }
    return std::string(reinterpret_cast<const char*>(numbers.data()),
                       numbers.size() * sizeof numbers[0]);
  });
  std::vector<std::int64_t> numbers(said.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), said.data(), said.size());
  std::vector<Common> all;
  for (const std::int64_t* at = numbers.data(); at < numbers.data() + numbers.size();) {
    Common c{int(at[0]), int(at[1]), DType(at[2])};
    at += 3, c.had = take_boxes(at), c.wanted = take_boxes(at);
    all.push_back(std::move(c));
  }
  return all;
}

/// Blocks of ranks are the same ones, or have nothing in common.
inline std::vector<Piece> pieces_of(const Common& t) {
  std::vector<Piece> pieces;
  const int ranks = int(t.had.size());
  for (int to = 0; to < int(t.wanted.size()); ++to) {
    const Box& wanted = t.wanted[std::size_t(to)];
    std::int64_t found = 0;
    for (int first = 0; first < ranks; ++first) {
      const Box& block = t.had[std::size_t(first)];
      const Box box = common(wanted, block);
      if (box.empty() || std::ranges::find(t.had, block) - t.had.begin() != first) continue;
      found += box.size();
      std::vector<int> holders;
      for (int r = first; r < ranks; ++r)
        if (t.had[std::size_t(r)] == block) holders.push_back(r);
      if (std::ranges::find(holders, to) != holders.end()) holders = {to};
      for (std::size_t h = 0; h < holders.size(); ++h) {
        const Part rows = part(box.n.size, int(holders.size()), int(h));
        Box some = box;
        some.n = {box.n.begin + rows.begin, rows.size};
        if (rows.size > 0) pieces.push_back({some, holders[h], to});
      }
    }
    check(found == wanted.size(), "hand_over: of ", wanted.size(), " elements ranks have ", found);
  }
  return pieces;
}

/// What is in `box` of a plain block; absent where it does not lie there in one piece.
inline View in_one_piece(const View& block, const Box& of, const Box& box) {
  const bool rows = box.c == of.c && box.h == of.h && box.w == of.w;
  if (!block || !rows || common(box, of) != box) return {};
  const auto at = std::size_t(of.offset(box.n.begin, of.c.begin, of.h.begin, of.w.begin));
  return block.at(at * size_of(block.dtype), {box.shape(), block.dtype, {}});
}

/// This rank's side of one of the two networks: memory for one tensor after the other.
class Side {
 public:
  Side(const PlacedNetwork* network, int rank) : rank_(rank) {
    if (network) slots_ = slots_of(*network, true);
  }

  const std::vector<Slot>& slots() const { return slots_; }
  /// Whether this rank has a block of it.
  bool has(int slot) const { return !slots_.empty() && slots_[std::size_t(slot)].held(rank_); }
  /// This rank's block of a slot that it has, on the host. New memory is dear: it is taken for the
  /// first one that is asked for, with room for each.
  View plain(int slot) {
    if (!room_.view()) room_ = Tensor({1, most(), 1, 1}, DType::f64);
    const Slot& s = slots_[std::size_t(slot)];
    return room_.view().at(0, {s.mine.shape, s.mine.dtype, {}});
  }

 private:
  std::int64_t most() const {
    std::size_t bytes = 0;
    for (const Slot& s : slots_)
      if (s.held(rank_)) bytes = std::max(bytes, s.mine.shape.size() * size_of(s.mine.dtype));
    return std::int64_t(bytes / sizeof(double)) + 1;
  }

  int rank_;
  std::vector<Slot> slots_;
  Tensor room_;
};

/// Moves pieces of a tensor from blocks that lie plain into others.
class Mover {
 public:
  explicit Mover(const Communicator& ranks) : ranks_(ranks) {}

  /// Where both ranks are one, and both blocks have memory of their own.
  static void copy(const Box& box, const View& from, const Box& had, const View& to,
                   const Box& wanted) {
    const std::size_t element = size_of(from.dtype);
    for_runs(box, had, wanted, [&](std::int64_t i, std::int64_t j, std::int64_t length) {
      std::memcpy(to.as<char>() + std::size_t(j) * element,
                  from.as<char>() + std::size_t(i) * element, std::size_t(length) * element);
    });
  }

  /// From one rank to another. All take part.
  void send(const Piece& piece, DType t, const View& from, const Box& had, const View& to,
            const Box& wanted) {
    const bool sends = ranks_.rank() == piece.from, gets = ranks_.rank() == piece.to;
    const std::size_t element = size_of(t);
    const Box& box = piece.box;
    const View whole_out = in_one_piece(sends ? from : View(), had, box);
    const View whole_in = in_one_piece(gets ? to : View(), wanted, box);
    for (std::int64_t first = 0; first < box.size(); first += longest_piece) {
      const Part some{first, std::min(longest_piece, box.size() - first)};
      const Form form{{1, some.size, 1, 1}, t, {}};
      const auto place = [&](bool takes_part, const View& whole, Tensor& room) {
        if (!takes_part) return View(nullptr, form);
        return whole ? whole.at(std::size_t(first) * element, form) : room_of(room).at(0, form);
      };
      const View out = place(sends, whole_out, sent_), in = place(gets, whole_in, got_);
      const auto each = [&](const View& v, const Box& block, auto&& copy) {
        for_runs(box, some, block, box, [&](std::int64_t i, std::int64_t j, std::int64_t length) {
          copy(v.as<char>() + std::size_t(i) * element, std::size_t(j - first) * element,
               std::size_t(length) * element);
        });
      };
      if (sends && !whole_out)
        each(from, had, [&](const char* at, std::size_t j, std::size_t bytes) {
          std::memcpy(out.as<char>() + j, at, bytes);
        });
      ranks_.exchange(stream_, Pass::update, out, sends ? piece.to : -1, in, gets ? piece.from : -1)
          .wait(stream_);
      if (gets && !whole_in)
        each(to, wanted, [&](char* at, std::size_t j, std::size_t bytes) {
          std::memcpy(at, in.as<char>() + j, bytes);
        });
    }
  }

 private:
  /// Where a part lies together that does not in its block.
  static const View& room_of(Tensor& room) {
    if (!room.view()) room = Tensor({1, longest_piece, 1, 1}, DType::f64);
    return room.view();
  }

  const Communicator& ranks_;
  Stream stream_;
  Tensor sent_, got_;
};

}  // namespace detail

LAMINA_INLINE double hand_over(const PlacedNetwork* before, PlacedNetwork* after,
                               const Communicator& ranks) {
  const int me = ranks.rank();
  using namespace detail;
  Side old(before, me), fresh(after, me);
  std::optional<SlotReader> reader;
  if (before) reader.emplace(*before);
  if (after) after->changed(), after->values_are_new();
  Mover mover(ranks);
  double bytes = 0;
  for (const Common& c : common_to(old.slots(), fresh.slots(), ranks)) {
    const View from = old.has(c.before) ? old.plain(c.before) : View();
    const bool wants = fresh.has(c.after);
    View to = wants ? in_one_piece(from, c.block_had(me), c.block_wanted(me)) : View();
    const bool is_there = bool(to);
    if (wants && !is_there) to = fresh.plain(c.after);
    if (reader) reader->read(old.slots()[std::size_t(c.before)], from);
    for (const Piece& p : pieces_of(c)) {
      const Box had = c.block_had(p.from), wanted = c.block_wanted(p.to);
      if (p.from != p.to) {
        mover.send(p, c.dtype, from, had, to, wanted);
        bytes += double(p.box.size()) * double(size_of(c.dtype));
      } else if (me == p.to && !is_there) {
        Mover::copy(p.box, from, had, to, wanted);
      }
    }
    if (to) write_slot(fresh.slots()[std::size_t(c.after)], *after, to);
  }
  return bytes;
}

}  // namespace lamina
