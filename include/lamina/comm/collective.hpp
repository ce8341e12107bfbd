// Operation: one call of a collective, as a value that every transport understands.
#pragma once

#include <lamina/cost/collective.hpp>
#include <lamina/tensor/dtype.hpp>
#include <lamina/tensor/memory_space.hpp>
#include <lamina/tensor/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace lamina {

enum class ReduceOp : std::uint8_t { sum, max, min };

constexpr const char* name(ReduceOp op) {
  constexpr const char* names[] = {"sum", "max", "min"};
  return names[int(op)];
}

/// One call of one collective. `count` is in elements of what one rank contributes or gets:
///
///   all_reduce      in == out, count elements
///   reduce_scatter  in: size * count, out: count
///   all_gather      in: count, out: size * count (in may be out's own part)
///   broadcast       in == out, count elements, from rank `from`
///   all_to_all      in and out: size * count
///   halo            in: count to rank `to`, out: `received` from rank `from`; -1 = no message that
///                   way
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::f32;
  Pass pass = Pass::forward;
  std::int32_t layer = -1;
  const char* layer_name = "";  ///< where it is known, for messages
  int to = -1, from = -1;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0, received = 0;
  bool narrow = false;           ///< a sum of f32 whose numbers go from node to node as bf16
  bool ordered = false;          ///< the order of a sum is that of added_first(), except over NCCL
  MemorySpace* space = nullptr;  ///< where `in` and `out` lie; null = on the host
  Event after = {};              ///< on a device: that what writes `in` and reads `out` has run
  bool timed = false;            ///< on a device: somebody will ask when it ran there

  /// Whether two ranks called the same thing. Halos have other counts and peers at the edges.
  bool matches(const Operation& other) const {
    // Ranks may number their layers differently; the names are the same.
    const bool named = *layer_name && *other.layer_name;
    if (named ? std::strcmp(layer_name, other.layer_name) != 0 : layer != other.layer) return false;
    if (collective != other.collective || pass != other.pass) return false;
    if (collective == Collective::halo) return dtype == other.dtype;
    return reduce == other.reduce && dtype == other.dtype && narrow == other.narrow &&
           count == other.count && from == other.from;
  }

  /// Whether it adds up, or takes the largest or smallest of, what ranks have.
  bool reduces() const {
    return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
  }
  /// Bytes of the larger of the two buffers, the size that nccl-tests prints, in the type in which
  /// it travels; of a halo what is sent, so that what its ranks get is not counted again.
  double bytes(int ranks) const {
    const bool whole = collective == Collective::reduce_scatter ||
                       collective == Collective::all_gather || collective == Collective::all_to_all;
    return double(count * size_of(narrow ? DType::bf16 : dtype)) * (whole ? ranks : 1);
  }
  /// Bytes of `in` and of `out`; 0 where a halo has no message that way.
  std::size_t bytes_in(int ranks) const {
    if (collective == Collective::halo && to < 0) return 0;
    const bool parts =
        collective == Collective::reduce_scatter || collective == Collective::all_to_all;
    return count * size_of(dtype) * std::size_t(parts ? ranks : 1);
  }
  std::size_t bytes_out(int ranks) const {
    if (collective == Collective::halo) return from < 0 ? 0 : received * size_of(dtype);
    const bool parts = collective == Collective::all_gather || collective == Collective::all_to_all;
    return count * size_of(dtype) * std::size_t(parts ? ranks : 1);
  }
  /// "all_reduce sum of 4096 f32 in layer fc (weight_grad)"; the layer's number without a name
  std::string text() const {
    std::string s = name(collective);
    if (reduces()) append(s, lamina::text(' ', name(reduce)));
    if (collective == Collective::broadcast) append(s, lamina::text(" from rank ", from));
    if (collective != Collective::barrier) append(s, lamina::text(" of ", count, ' ', name(dtype)));
    if (narrow) append(s, " as bf16");
    if (layer >= 0) {
      append(s, " in layer ");
      append(s, *layer_name ? Word(layer_name) : Word(layer));
      append(s, lamina::text(" (", name(pass), ')'));
    }
    return s;
  }
};

/// The order in which an ordered sum over `n` ranks, two or more, is taken: the sum of so many, and
/// that of the others, each likewise. These are halves, while there are two equal ones; else all
/// but the last. So whole halves can be summed anywhere: by one rank, or by several.
constexpr std::size_t added_first(std::size_t n) { return n % 2 == 0 ? n / 2 : n - 1; }

/// What is wrong with the messages of a halo, of which `at(rank)` is what each of the ranks called;
/// empty where what is sent is what is expected.
template <class At>
std::string stray_message(int ranks, const At& at) {
  const auto sent = [](const Operation& op, int to) { return op.to == to ? op.count : 0; };
  const auto expected = [](const Operation& op, int from) {
    return op.from == from ? op.received : 0;
  };
  for (int r = 0; r < ranks; ++r) {
    const Operation& mine = at(r);
    if (mine.to >= 0 && sent(mine, mine.to) != expected(at(mine.to), r))
      return text("rank ", r, " called ", mine, " to rank ", mine.to, ", which expects ",
                  expected(at(mine.to), r));
    if (mine.from >= 0 && expected(mine, mine.from) != sent(at(mine.from), r))
      return text("rank ", mine.from, " called ", at(mine.from), ", of which rank ", r, " expects ",
                  mine.received);
  }
  return {};
}

}  // namespace lamina
