// Collectives between the members of a communicator of MPI.
#include "comm/mpi_group.hpp"

#include "comm/mpi_combine.hpp"

#include <algorithm>
#include <climits>

namespace lamina::detail {
namespace {

/// From here on, parts of a buffer go around a ring: below, the number of messages counts.
constexpr double least_part = 4 << 10;

}  // namespace

MpiGroup::MpiGroup(MPI_Comm comm, Lookout& lookout)
    : comm_(comm), lookout_(lookout), ring_(comm, lookout) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

/// Of a buffer of `count` elements.
const std::vector<Ring::Range>& MpiGroup::equal_parts(std::size_t count) {
  const auto n = std::size_t(size_);
  parts_.resize(n);
  for (std::size_t p = 0; p < n; ++p) {
    const std::size_t begin = count * p / n;
    parts_[p] = {begin, count * (p + 1) / n - begin};
  }
  return parts_;
}

void MpiGroup::run(const Operation& op, bool may_ring) {
  const auto* const in = static_cast<const char*>(op.in);
  auto* const out = static_cast<char*>(op.out);
  const std::size_t bytes = op.count * size_of(op.dtype), all = op.count * std::size_t(size_);
  const bool ring = may_ring && op.bytes(size_) >= least_part * size_;
  if (op.narrow && op.collective == Collective::all_reduce) return all_reduce_narrow(op);
  if (op.narrow) return reduce_scatter_narrow(op, in, out, equal_parts(all));
  if (op.ordered && op.reduces() && size_ > 2) return reduce_in_order(op, ring);
  switch (op.collective) {
    case Collective::all_reduce:
      if (ring) return ring_.all_reduce(op, out, equal_parts(op.count));
      break;
    case Collective::reduce_scatter:
      if (ring) return ring_.reduce_scatter(op, in, out, equal_parts(all));
      break;
    case Collective::all_gather:
      if (!ring) break;
      if (char* const own = out + std::size_t(rank_) * bytes; own != in)
        std::memcpy(own, in, bytes);
      return ring_.all_gather(op, out, equal_parts(all));
    case Collective::all_to_all:
      return all_to_all(op);
    case Collective::broadcast: {
      // In pieces: Open MPI allocates a buffer of the message's size for each call, and above a few
      // MiB the page faults take longer than the transfer.
      const std::size_t piece = (std::size_t(2) << 20) / size_of(op.dtype);
      Operation part = op;
      for (std::size_t done = 0; done < op.count; done += part.count) {
        part.count = std::min(piece, op.count - done);
        part.out = out + done * size_of(op.dtype);
        call(part);
      }
      return;
    }
    default:
      break;
  }
  const bool halo = op.collective == Collective::halo;  // one message, whatever the group
  const std::size_t most = halo ? std::max(op.count, op.received) : all;
  check(most <= INT_MAX, op, ": more elements than MPI can count");
  call(op);
}

/// In rounds, each with another pair of partners, as redistributions go. MPI sends all at once:
/// over slow links messages that meet at a rank are lost, and sent again much later.
void MpiGroup::all_to_all(const Operation& op) {
  check(op.count <= INT_MAX, op, ": more elements than MPI can count");
  const auto* const in = static_cast<const char*>(op.in);
  auto* const out = static_cast<char*>(op.out);
  const auto place = [&](int rank) { return std::size_t(rank) * op.count * size_of(op.dtype); };
  std::memcpy(out + place(rank_), in + place(rank_), op.count * size_of(op.dtype));
  Operation part = op;
  part.collective = Collective::halo, part.received = op.count;
  for (int i = 1; i < size_; ++i) {
    part.to = (rank_ + i) % size_, part.from = (rank_ - i + size_) % size_;
    part.in = in + place(part.to), part.out = out + place(part.from);
    call(part);
  }
}

/// Each part goes to the rank that sums it, as often as in a ring, and the sums go around one. What
/// is small, each rank sums by itself.
void MpiGroup::reduce_in_order(const Operation& op, bool by_parts) {
  const bool scatter = op.collective == Collective::reduce_scatter;
  const auto n = std::size_t(size_), me = std::size_t(rank_);
  const std::size_t element = size_of(op.dtype), all = op.count * (scatter ? n : 1);
  const std::size_t part = by_parts || scatter ? (all + n - 1) / n : all;
  received_.resize(2 * n * part * element);
  char* const sent = received_.data() + n * part * element;
  std::vector<const char*> sources(n);
  for (std::size_t r = 0; r < n; ++r) sources[r] = received_.data() + r * part * element;
  Operation move = op;
  move.count = part, move.in = sent, move.out = received_.data();
  std::memcpy(sent, op.in, all * element);
  if (part < all) {
    all_to_all(move);
  } else {
    move.collective = Collective::all_gather;
    call(move);
  }
  auto* const out = static_cast<char*>(op.out);
  char* const own = scatter || part == all ? out : sent + me * part * element;
  combine_all(op, sources, part, {own});
  if (scatter || part == all) return;
  move.collective = Collective::all_gather, move.in = own, move.out = sent;
  ring_.all_gather(move, sent, equal_parts(n * part));
  std::memcpy(out, sent, all * element);
}

void MpiGroup::reduce_scatter(const Operation& op, const char* whole, char* own,
                              const std::vector<Ring::Range>& parts) {
  if (op.narrow) return reduce_scatter_narrow(op, whole, own, parts);
  ring_.reduce_scatter(op, whole, own, parts);
}

/// As much as in a ring travels, but no sum of a few ranks: that would be rounded at each of them.
void MpiGroup::all_reduce_narrow(const Operation& op) {
  auto* const data = static_cast<float*>(op.out);
  const auto& parts = equal_parts(op.count);
  const Ring::Range mine = parts[std::size_t(rank_)];
  float* const own = data + mine.begin;
  reduce_scatter_narrow(op, static_cast<const char*>(op.in), reinterpret_cast<char*>(own), parts);
  narrow_.resize(std::max(narrow_.size(), op.count));
  narrow(narrow_.data() + mine.begin, own, mine.count);
  Operation gather = op;
  gather.dtype = DType::bf16;
  ring_.all_gather(gather, reinterpret_cast<char*>(narrow_.data()), parts);
  widen(data, narrow_.data(), op.count);
}

/// In rounds, as all_to_all() goes. Our own part is not rounded.
void MpiGroup::reduce_scatter_narrow(const Operation& op, const char* whole, char* own,
                                     const std::vector<Ring::Range>& parts) {
  const auto* const in = reinterpret_cast<const float*>(whole);
  auto* const sum = reinterpret_cast<float*>(own);
  const Ring::Range mine = parts[std::size_t(rank_)];
  if (in + mine.begin != sum) std::copy_n(in + mine.begin, mine.count, sum);
  std::size_t most = 0;
  for (const Ring::Range& p : parts) most = std::max(most, p.count);
  check(most <= INT_MAX, op, ": more elements than MPI can count");
  narrow_.resize(std::max(narrow_.size(), 2 * most));
  BF16* const sent = narrow_.data();
  Operation part = op;
  part.collective = Collective::halo, part.dtype = DType::bf16;
  part.in = sent, part.out = sent + most, part.received = mine.count;
  for (int i = 1; i < size_; ++i) {
    part.to = (rank_ + i) % size_, part.from = (rank_ - i + size_) % size_;
    const Ring::Range theirs = parts[std::size_t(part.to)];
    narrow(sent, in + theirs.begin, theirs.count);
    part.count = theirs.count;
    call(part);
    add(sum, sent + most, mine.count);
  }
}

void MpiGroup::call(const Operation& op) {
  const MPI_Datatype type = type_of(op);
  const int count = int(op.count);
  MPI_Request request = MPI_REQUEST_NULL;
  int status = MPI_SUCCESS;
  switch (op.collective) {
    case Collective::all_reduce:
      status = MPI_Iallreduce(MPI_IN_PLACE, op.out, count, type, op_of(op.reduce), comm_, &request);
      break;
    case Collective::reduce_scatter:
      status =
          MPI_Ireduce_scatter_block(op.in, op.out, count, type, op_of(op.reduce), comm_, &request);
      break;
    case Collective::all_gather: {
      const auto* own =
          static_cast<char*>(op.out) + std::size_t(rank_) * op.count * size_of(op.dtype);
      status = MPI_Iallgather(op.in == own ? MPI_IN_PLACE : op.in, count, type, op.out, count, type,
                              comm_, &request);
      break;
    }
    case Collective::broadcast:
      status = MPI_Ibcast(op.out, count, type, op.from, comm_, &request);
      break;
    case Collective::barrier:
      status = MPI_Ibarrier(comm_, &request);
      break;
    case Collective::halo: {
      MPI_Request receive = MPI_REQUEST_NULL;
      MPI_Status end;
      try {
        if (op.from >= 0)
          check_mpi(MPI_Irecv(op.out, int(op.received), type, op.from, 0, comm_, &receive),
                    "MPI_Irecv");
        if (op.to >= 0)
          check_mpi(MPI_Isend(op.in, count, type, op.to, 0, comm_, &request), "MPI_Isend");
        wait(receive, op, lookout_, &end);
      } catch (...) {
        give_up({&receive, 1});
        throw;
      }
      wait(request, op, lookout_);
      int got = 0;
      if (op.from >= 0) MPI_Get_count(&end, type, &got);
      check(op.from < 0 || std::size_t(got) == op.received, op, ": rank ", op.from, " has sent ",
            got, " of ", op.received);
      return;
    }
    case Collective::all_to_all:
      break;  // in rounds of halos
  }
  check_mpi(status, name(op.collective));
  wait(request, op, lookout_);
}

}  // namespace lamina::detail
