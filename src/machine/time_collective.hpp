// The time of one collective at one size, and whether it is right: for the ceilings and for the
// benchmark.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/comm/volume.hpp>

#include <vector>

namespace lamina::detail {

/// Those that can be timed, in the order in which they are shown.
std::vector<Collective> timed_collectives();

/// Owns the buffers. Every member is to be called by all ranks of the group together.
/// Point-to-point (halo) goes both ways at once between ranks 2i and 2i + 1; the last one of an odd
/// number has nobody.
class TimedCollective {
 public:
  /// `bytes` is the larger buffer, rounded to whole elements per rank, at least one. All lie in
  /// that memory.
  TimedCollective(const Communicator& ranks, Collective op, DType dtype, std::size_t bytes,
                  MemorySpace& memory = host_memory());

  /// Of the larger buffer.
  std::size_t bytes() const { return whole_.bytes(); }
  /// Elements of all ranks that one call left wrong.
  double wrong();
  /// Mean seconds of that many calls in a row, on the slowest rank.
  double time(int calls);
  struct Best {
    double seconds = 0;
    bool agreed = false;  ///< another try came close to it
  };
  /// The same, as the best of a few tries that take about `seconds` together, after a warm-up.
  Best best_time(double seconds);

 private:
  /// Behind it the stream waits for what it gives.
  void call();
  template <class T>
  double count_wrong();

  Communicator ranks_;
  Collective op_;
  DType dtype_;
  Stream stream_;
  Tensor part_, whole_, other_;  // of one rank, of all ranks, and a second one of all
};

}  // namespace lamina::detail
