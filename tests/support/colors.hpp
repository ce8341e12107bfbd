// Groups of ranks by a color that each of them picks.
#pragma once

#include <lamina/comm/communicator.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace lamina::test {

/// The ranks that pass the same color, ordered by (key, rank). A negative color: alone. Collective.
inline Communicator split(const Communicator& comm, int color, int key = 0) {
  const auto all = comm.all_gather_value(std::array{color, key});
  std::vector<int> members;
  for (int r = 0; r < comm.size(); ++r)
    if (color >= 0 && all[std::size_t(r)][0] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return all[std::size_t(a)][1] < all[std::size_t(b)][1]; });
  return comm.group(members);
}

}  // namespace lamina::test
