#include "crowding.hpp"

#include "cpu/processors.hpp"

#include <lamina/base/text.hpp>
#include <lamina/kernels/threads.hpp>

#include <algorithm>
#include <vector>

namespace lamina::cli {

namespace {

/// Of one rank: the processors that its threads may run on; none where the system does not say.
struct Share {
  cpu_set_t processors;
  int threads;
};

}  // namespace

std::string crowding(const World& world) {
  const Share mine{lamina::detail::processors_of_kernels(), threads()};
  const std::vector<Share> shares = world.comm().all_gather_value(mine);
  const std::vector<std::string>& hosts = world.hosts();

  std::string lines;
  for (std::size_t first = 0; first < shares.size(); ++first) {
    const auto begin = hosts.begin(), it = begin + std::ptrdiff_t(first);
    if (std::find(begin, it, *it) != it) continue;  // a host that we have had
    cpu_set_t all;
    CPU_ZERO(&all);
    int ranks = 0, threads = 0;
    bool known = true;
    for (std::size_t r = first; r < shares.size(); ++r) {
      if (hosts[r] != *it) continue;
      CPU_OR(&all, &all, &shares[r].processors);
      known = known && CPU_COUNT(&shares[r].processors) > 0;
      ++ranks, threads += shares[r].threads;
    }
    const int processors = CPU_COUNT(&all);
    if (!known || threads <= processors) continue;
    append(lines, text("# warning: ", *it, ": ", threads, " threads of ", ranks,
                       ranks == 1 ? " rank on " : " ranks on ", processors,
                       processors == 1 ? " processor" : " processors",
                       "\n#   They wait for each other; expected --threads ",
                       std::max(1, processors / ranks)));
    append(lines, ranks > processors ? text(" and at most ", processors, " of the ranks\n") : "\n");
  }
  return lines;
}

}  // namespace lamina::cli
