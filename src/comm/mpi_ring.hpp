// Large buffers go around a ring: each rank sends to the next one while it receives from the one
// before, so that links which carry both ways are full both ways.
//
// Part p of a buffer belongs to rank p. In step s rank r sends its piece of part r-1-s and receives
// one of part r-2-s. In the first n-1 steps what arrives is a sum, to which the rank adds its own
// numbers; the last of them completes its own part. In n-1 steps more the parts travel on as they
// are. An all-reduce is both halves, a reduce-scatter the first, an all-gather the second.
//
// A sum is thus made at one place at a time, always in the order of the ring: its bits are the same
// on all ranks and in every run. Buffers go around in pieces, of which several are under way, so
// that sums are made behind messages.
#pragma once

#include "comm/mpi_calls.hpp"

#include <array>
#include <vector>

namespace lamina::detail {

class Ring {
 public:
  /// Where the part of a rank lies in the whole buffer, in elements.
  struct Range {
    std::size_t begin = 0, count = 0;
  };

  Ring(MPI_Comm comm, Lookout& lookout);

  /// `parts`, by rank, are the same on all ranks, and cover all that is reduced.
  void all_reduce(const Operation&, char* data, const std::vector<Range>& parts);
  /// own = our part of the sum of all `whole`s, which are only read.
  void reduce_scatter(const Operation&, const char* whole, char* own,
                      const std::vector<Range>& parts);
  /// Our own part lies in its place already.
  void all_gather(const Operation&, char* whole, const std::vector<Range>& parts);

 private:
  struct Trip;
  /// Of one call of run(): how far it is. Messages are numbered in the order in which they travel.
  struct Progress {
    std::size_t receiving = 0, received = 0;  ///< begun, done
    std::size_t sending = 0, sent = 0;
  };

  void run(Trip);
  bool advance(const Trip&, Progress&);

  static constexpr std::size_t width = 4;  ///< pieces of a part that are under way

  MPI_Comm comm_;
  Lookout& lookout_;
  int rank_ = 0, size_ = 1;
  std::vector<char> slots_;  ///< for two steps: what arrived in one is sent in the next
  std::array<MPI_Request, 2 * width> receives_, sends_;
};

}  // namespace lamina::detail
