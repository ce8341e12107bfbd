// Large buffers go around a ring.
#include "comm/mpi_ring.hpp"

#include "comm/mpi_combine.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

/// What Open MPI sends over TCP without asking first: where it asks, the answer waits behind the
/// data that go the other way, and messages that should cross go one after the other.
constexpr std::size_t piece_bytes = 60 << 10;

}  // namespace

/// One call. A message is a piece of a part in a step. Messages are numbered by round, then step,
/// then place in the row of pieces that are under way: when the last step of a round begins to
/// wait, the next round is on its way.
struct Ring::Trip {
  const Operation& op;
  const std::vector<Range>& parts;
  const char* in;  // the whole buffer, before
  char* own;       // our part, summed
  char* out;       // the whole buffer, gathered
  std::size_t ranks, rank;
  std::size_t first, last;  // steps

  std::size_t element = size_of(op.dtype);
  std::size_t row = 0, pieces = 0;  // of each part: at once, in all
  std::size_t messages = 0;

  void cut() {
    std::size_t largest = 0;
    for (const Range& p : parts) largest = std::max(largest, p.count * element);
    const std::size_t needed = (largest + piece_bytes - 1) / piece_bytes;
    row = std::clamp(needed, std::size_t(1), width);
    pieces = (needed + row - 1) / row * row;
    messages = pieces * (last - first);
  }

  /// Of the whole buffer in bytes.
  struct Piece {
    std::size_t begin, bytes;
  };
  std::size_t row_of(std::size_t message) const { return message / row; }
  std::size_t step(std::size_t message) const { return first + row_of(message) % (last - first); }
  /// The piece of part rank - back that travels with that message.
  Piece piece(std::size_t message, std::size_t back) const {
    const std::size_t p = (rank + 2 * ranks - back) % ranks;
    const std::size_t i = row_of(message) / (last - first) * row + message % row;
    const std::size_t begin = parts[p].count * i / pieces, end = parts[p].count * (i + 1) / pieces;
    return {(parts[p].begin + begin) * element, (end - begin) * element};
  }
  Piece sent(std::size_t message) const { return piece(message, 1 + step(message)); }
  Piece received(std::size_t message) const { return piece(message, 2 + step(message)); }
  char* in_own(const Piece& p) const { return own + (p.begin - parts[rank].begin * element); }
};

Ring::Ring(MPI_Comm comm, Lookout& lookout) : comm_(comm), lookout_(lookout) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

void Ring::all_reduce(const Operation& op, char* data, const std::vector<Range>& parts) {
  const auto n = std::size_t(size_), me = std::size_t(rank_);
  char* const own = data + parts[me].begin * size_of(op.dtype);
  run({op, parts, data, own, data, n, me, 0, 2 * n - 2});
}

void Ring::reduce_scatter(const Operation& op, const char* whole, char* own,
                          const std::vector<Range>& parts) {
  const auto n = std::size_t(size_), me = std::size_t(rank_);
  run({op, parts, whole, own, nullptr, n, me, 0, n - 1});
}

void Ring::all_gather(const Operation& op, char* whole, const std::vector<Range>& parts) {
  const auto n = std::size_t(size_), me = std::size_t(rank_);
  char* const own = whole + parts[me].begin * size_of(op.dtype);
  run({op, parts, nullptr, own, whole, n, me, n - 1, 2 * n - 2});
}

void Ring::run(Trip trip) {
  trip.cut();
  if (slots_.empty() && trip.first == 0) slots_.resize(2 * width * piece_bytes);
  receives_.fill(MPI_REQUEST_NULL);
  sends_.fill(MPI_REQUEST_NULL);
  Progress at;
  try {
    while (at.received < trip.messages || at.sent < trip.messages)
      wait_until(trip.op, lookout_, [&] { return advance(trip, at); });
  } catch (...) {
    give_up(receives_);
    throw;
  }
}

/// Begins and ends what can be; whether anything could.
bool Ring::advance(const Trip& t, Progress& at) {
  const auto n = t.ranks;
  const auto slot = [&](std::size_t message, std::size_t step_back) {
    const std::size_t row = t.row_of(message) - step_back;
    return slots_.data() + (row % 2 * width + message % t.row) * piece_bytes;
  };
  const int next = int((t.rank + 1) % n), before = int((t.rank + n - 1) % n);
  bool moved = false;
  const auto done = [&](MPI_Request& request) {
    int flag = 0;
    check_mpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), name(t.op.collective));
    return flag != 0;
  };

  // A message may come in where the one of a step before has left: from its slot, or, where parts
  // travel as they are, from the place of what we gave first.
  while (at.receiving < t.messages && at.receiving < at.sent + t.row &&
         at.receiving < at.received + 2 * t.row) {
    const std::size_t m = at.receiving++;
    const auto piece = t.received(m);
    char* const to = t.step(m) < n - 1 ? slot(m, 0) : t.out + piece.begin;
    check_mpi(MPI_Irecv(to, int(piece.bytes), MPI_BYTE, before, 1, comm_,
                        &receives_[m % receives_.size()]),
              "MPI_Irecv");
    moved = true;
  }
  while (at.received < at.receiving && done(receives_[at.received % receives_.size()])) {
    const std::size_t m = at.received++, s = t.step(m);
    const auto piece = t.received(m);
    if (s + 1 < n) {
      char* const sum = s + 2 < n ? slot(m, 0) : t.in_own(piece);
      combine(t.op, sum, slot(m, 0), t.in + piece.begin, piece.bytes / t.element);
    }
    moved = true;
  }
  while (at.sending < t.messages && at.sending < at.sent + 2 * t.row) {
    const std::size_t m = at.sending, s = t.step(m);
    if (s > t.first && at.received + t.row <= m) break;  // not here yet
    const auto piece = t.sent(m);
    const char* const from = s == 0       ? t.in + piece.begin
                             : s < n - 1  ? slot(m, 1)
                             : s == n - 1 ? t.in_own(piece)
                                          : t.out + piece.begin;
    check_mpi(
        MPI_Isend(from, int(piece.bytes), MPI_BYTE, next, 1, comm_, &sends_[m % sends_.size()]),
        "MPI_Isend");
    ++at.sending;
    moved = true;
  }
  while (at.sent < at.sending && done(sends_[at.sent % sends_.size()])) {
    ++at.sent;
    moved = true;
  }
  return moved;
}

}  // namespace lamina::detail
