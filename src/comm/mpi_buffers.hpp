// Buffers that the ranks of a node can reach, each its own and its peers': there, collectives need
// not copy.
//
// A buffer is a file in memory that has no name. Peers open it through its process, and each rank
// gives up what it has mapped whenever it likes: an MPI window would have to be freed by all at
// once, and lies in /dev/shm, where containers have little room.
#pragma once

#include "comm/mpi_calls.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace lamina::detail {

/// Those of one process. Its ranks are known by their places on the node.
class SharedBuffers : public std::enable_shared_from_this<SharedBuffers> {
 public:
  SharedBuffers();
  ~SharedBuffers();

  /// Where data lie, in words that peers understand.
  struct Address {
    unsigned buffer = 0;  ///< 0: in none
    std::size_t offset = 0;
  };

  /// This rank's `bytes` of zeros, for as long as anybody keeps the result; or null, on all ranks
  /// of the node, where one of them cannot reach another's. Collective over `comm`; `ranks` of it
  /// are on this node, at `places`.
  std::shared_ptr<void> make(MPI_Comm comm, Lookout&, const std::vector<int>& ranks,
                             const std::vector<int>& places, std::size_t bytes, bool touched);

  Address find(const void* data) const;
  /// The same address in the buffer of the rank at `place`, as we see it; null if it has none.
  char* at(int place, Address) const;

 private:
  struct Buffer;
  void remove(unsigned id);

  mutable std::mutex mutex_;  // buffers go on whichever thread drops them
  std::vector<std::unique_ptr<Buffer>> buffers_;
  unsigned last_ = 0;
};

}  // namespace lamina::detail
