// Collectives between the members of a communicator of MPI, without memory that they share: large
// sums and gathers around a ring, all_to_all in rounds, the rest by the non-blocking calls of MPI.
#pragma once

#include "comm/mpi_ring.hpp"

namespace lamina::detail {

class MpiGroup {
 public:
  MpiGroup(MPI_Comm comm, Lookout& lookout);

  /// `may_ring`: false leaves all to MPI, for members of one node: there it copies once.
  void run(const Operation&, bool may_ring = true);
  Ring& ring() { return ring_; }
  /// As the ring's.
  void reduce_scatter(const Operation&, const char* whole, char* own,
                      const std::vector<Ring::Range>& parts);

 private:
  void call(const Operation&);
  void all_to_all(const Operation&);
  void reduce_in_order(const Operation&, bool by_parts);
  void all_reduce_narrow(const Operation&);
  void reduce_scatter_narrow(const Operation&, const char* whole, char* own,
                             const std::vector<Ring::Range>& parts);
  const std::vector<Ring::Range>& equal_parts(std::size_t count);

  MPI_Comm comm_;
  Lookout& lookout_;
  int rank_ = 0, size_ = 1;
  Ring ring_;
  std::vector<Ring::Range> parts_;
  std::vector<char> received_;  // what is summed in order
  std::vector<BF16> narrow_;    // what travels so
};

}  // namespace lamina::detail
