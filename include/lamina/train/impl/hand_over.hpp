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

/// How this rank's block of a tensor lies: an order of axes, or a layout of which nothing is known
/// but that it is one and the same; 0 where it cannot be moved as it lies.
using Lies = std::uint64_t;
constexpr Lies a_layout = Lies(1) << 63;

inline Lies lies(const Slot& slot) {
  const View& v = slot.mine;
  const bool rounded = slot.value && slot.value->value.data != v.data;  // from its master weights
  if (!v || !space_of(v).on_host() || slot.averaged || rounded) return 0;
  if (const std::optional<AxisOrder> order = v.order()) {
    Lies lies = 1;
    for (const int axis : *order) lies = 4 * lies + Lies(axis);
    return lies;
  }
  const std::uint64_t known = v.layout.fingerprint();
  return known == 0 ? 0 : known | a_layout;
}

inline AxisOrder order_of(Lies lies) {
  AxisOrder order;
  for (std::size_t i = 4; i-- > 0; lies /= 4) order[i] = int(lies % 4);
  return order;
}

/// A tensor that both networks have.
struct Common {
  int before = 0, after = 0;  // numbers of its slots
  DType dtype = DType::f32;
  /// All blocks lie so, and move as they lie: the boxes are those of the plain tensor that has its
  /// axes in this order, or of all elements of a block as they follow each other.
  bool as_it_lies = false;
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

/// By rank, how each slot lies, those before and then those after; nothing of a network that the
/// rank does not have.
inline std::vector<std::string> all_lie(const std::vector<Slot>& before,
                                        const std::vector<Slot>& after, const Communicator& ranks) {
  std::vector<Lies> mine;
  for (const std::vector<Slot>* slots : {&before, &after})
    for (const Slot& s : *slots) mine.push_back(lies(s));
  return ranks.all_gather_text(
      {reinterpret_cast<const char*>(mine.data()), sizeof(Lies) * mine.size()});
}

/// Turns boxes into those in which a tensor moves as it lies, where all say that it can. `of` is
/// rank 0's block.
inline void settle(Common& t, const std::vector<Lies>& all, const View& of) {
  if (all.empty() || all[0] == 0 || std::ranges::count(all, all[0]) != std::ptrdiff_t(all.size()))
    return;
  const Box whole = Box::of({std::int64_t(of.bytes() / size_of(of.dtype)), 1, 1, 1});
  Box first;
  for (std::vector<Box>* boxes : {&t.had, &t.wanted})
    for (const Box& b : *boxes) {
      if (b.empty()) continue;
      if (first.empty()) first = b;
      if (all[0] & a_layout && (b != first || !of)) return;
    }
  for (std::vector<Box>* boxes : {&t.had, &t.wanted})
    for (Box& b : *boxes)
      if (!b.empty()) b = all[0] & a_layout ? whole : in_order(b, order_of(all[0]));
  t.as_it_lies = true;
}

/// As rank 0 knows them, who has both networks.
inline std::vector<Common> common_to(const std::vector<Slot>& before,
                                     const std::vector<Slot>& after, const Communicator& ranks) {
  const auto texts = all_lie(before, after, ranks);
  const std::string said = on_first(ranks, [&] {
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const Slot& slot = after[i];
      const auto same = std::ranges::find_if(
          before, [&](const Slot& s) { return s.name == slot.name && s.dims == slot.dims; });
      const bool had = same != before.end();
      check(had || slot.local, slot.name, ": the network before has no such tensor");
      if (!had) continue;
      Common c{.before = int(same - before.begin()),
               .after = int(i),
               .dtype = slot.whole.dtype,
               .had = same->blocks,
               .wanted = slot.blocks};
      std::vector<Lies> all;
      const auto note = [&](const Slot& s, std::size_t rank, bool later) {
        // A rank without the network before begins with that after.
        const bool both = texts[rank].size() == sizeof(Lies) * (before.size() + after.size());
        const std::size_t at = later ? i + (both ? before.size() : 0) : std::size_t(c.before);
        if (!s.held(int(rank))) return;
        std::memcpy(&all.emplace_back(), texts[rank].data() + sizeof(Lies) * at, sizeof(Lies));
      };
      for (std::size_t r = 0; r < c.had.size(); ++r) note(*same, r, false);
      for (std::size_t r = 0; r < c.wanted.size(); ++r) note(slot, r, true);
      settle(c, all, slot.mine);
      numbers.insert(numbers.end(), {c.before, c.after, std::int64_t(c.dtype), c.as_it_lies});
      add(numbers, c.had), add(numbers, c.wanted);
    }
    return std::string(reinterpret_cast<const char*>(numbers.data()),
                       numbers.size() * sizeof numbers[0]);
  });
  std::vector<std::int64_t> numbers(said.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), said.data(), said.size());
  std::vector<Common> all;
  for (const std::int64_t* at = numbers.data(); at < numbers.data() + numbers.size();) {
    Common c{int(at[0]), int(at[1]), DType(at[2]), at[3] != 0};
    at += 4, c.had = take_boxes(at), c.wanted = take_boxes(at);
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
  /// This rank's block of a slot that it has, as it lies.
  View as_it_lies(int slot, const Box& block) const {
    const View& mine = slots_[std::size_t(slot)].mine;
    return mine.at(0, {block.shape(), mine.dtype, {}});
  }
  /// A copy of it, plain, on the host: to be filled. New memory is dear: it is taken for the
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

/// Moves pieces of a tensor from blocks of one rank that lie plain into those of another.
class Mover {
 public:
  explicit Mover(const Communicator& ranks) : ranks_(ranks) {}

  /// All take part.
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
    const Box block_had = c.block_had(me), block_wanted = c.block_wanted(me);
    const bool had_some = old.has(c.before), wants = fresh.has(c.after);
    View from, to;
    bool is_there = false;
    if (c.as_it_lies) {
      if (had_some) from = old.as_it_lies(c.before, block_had);
      if (wants) to = fresh.as_it_lies(c.after, block_wanted);
    } else {
      if (had_some) from = old.plain(c.before);
      if (wants) to = in_one_piece(from, block_had, block_wanted);
      is_there = bool(to);
      if (wants && !is_there) to = fresh.plain(c.after);
      if (reader) reader->read(old.slots()[std::size_t(c.before)], from);
    }
    for (const Piece& p : pieces_of(c)) {
      const Box had = c.block_had(p.from), wanted = c.block_wanted(p.to);
      if (p.from != p.to) {
        mover.send(p, c.dtype, from, had, to, wanted);
        bytes += double(p.box.size()) * double(size_of(c.dtype));
      } else if (me == p.to && !is_there) {
        const BoxMove own{from, had, to, wanted, p.box};
        move_boxes({&own, 1});
      }
    }
    if (to && !c.as_it_lies) write_slot(fresh.slots()[std::size_t(c.after)], *after, to);
  }
  return bytes + ranks.all_reduce_value(reader ? reader->gathered() : 0.0);
}

}  // namespace lamina
