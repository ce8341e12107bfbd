// Groups of some of a group's ranks, which are given out again once nobody uses them: MPI keeps
// what it makes to its end, since to free it is a collective call, and the last reference is
// dropped by whichever thread and whenever.
#pragma once

#include <lamina/comm/transport.hpp>

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lamina::detail {

class MpiParts {
 public:
  using Make = std::function<std::shared_ptr<Transport>(MPI_Comm)>;

  /// Collective over `whole`, blocking. Each rank names the members of its group, by their ranks in
  /// `whole` and itself among them, as they all do; or none, and gets null. What the members have
  /// and none of them uses is theirs again, as it was; else make() is called with a new one.
  std::shared_ptr<Transport> part(MPI_Comm whole, const std::vector<int>& members,
                                  const Make& make);

 private:
  struct Part {
    std::vector<int> members;
    std::shared_ptr<Transport> group;
  };
  /// By their numbers those parts of these members that this rank does not use.
  std::uint64_t idle(const std::vector<int>& members) const;

  std::vector<Part> made_;  // those of the same members in the same order on all of these
};

}  // namespace lamina::detail
