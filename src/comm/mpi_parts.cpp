// See mpi_parts.hpp.
#include "comm/mpi_parts.hpp"

#include "comm/mpi_calls.hpp"

#include <algorithm>
#include <bit>

namespace lamina::detail {

std::uint64_t MpiParts::idle(const std::vector<int>& members) const {
  std::uint64_t numbers = 0, number = 1;  // none is given out again beyond the 64th
  for (const Part& p : made_) {
    if (p.members != members) continue;
    if (p.group.use_count() == 1) numbers |= number;
    number <<= 1;
  }
  return numbers;
}

std::shared_ptr<Transport> MpiParts::part(MPI_Comm whole, const std::vector<int>& members,
                                          const Make& make) {
  struct Said {
    std::int64_t first;  // of the members
    std::uint64_t idle;
  };
  int rank = 0, size = 0;
  MPI_Comm_rank(whole, &rank);
  MPI_Comm_size(whole, &size);
  const bool none = members.empty();
  const Said mine{none ? -1 : members[0], none ? 1 : idle(members)};
  std::vector<Said> all(std::size_t(size), mine);
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, whole),
            "MPI_Allgather");
  for (Said& a : all)
    for (const Said& b : all)
      if (a.first == b.first) a.idle &= b.idle;

  const std::uint64_t ours = all[std::size_t(rank)].idle;
  if (std::any_of(all.begin(), all.end(), [](const Said& a) { return a.idle == 0; })) {
    const auto me = std::find(members.begin(), members.end(), rank);
    MPI_Comm fresh = MPI_COMM_NULL;
    check_mpi(
        MPI_Comm_split(whole, ours ? MPI_UNDEFINED : members[0], int(me - members.begin()), &fresh),
        "MPI_Comm_split");
    if (!ours) return made_.emplace_back(members, make(kept(fresh))).group;
  }
  if (none) return nullptr;
  int left = std::countr_zero(ours);
  const auto same = std::find_if(made_.begin(), made_.end(), [&](const Part& p) {
    return p.members == members && left-- == 0;
  });
  return same->group;
}

}  // namespace lamina::detail
