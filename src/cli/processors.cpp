#include "processors.hpp"

#include "cpu/processors.hpp"

#include <lamina/base/text.hpp>
#include <lamina/base/threads.hpp>

#include <algorithm>
#include <vector>

namespace lamina::cli {

namespace {

/// Of one rank: the processors that its threads may run on; none where the system does not say.
struct Share {
  cpu_set_t processors;
  int threads;
  int quota;  ///< of its control group, which ranks of one host are taken to be in together
};
std::vector<Share> shares_of(const World& world) {
  const Share mine{lamina::detail::processors_of_kernels(), threads(),
                   lamina::detail::whole_quota()};
  return world.comm().all_gather_value(mine);
}

}  // namespace

void take_processors(int asked, const World& world) {
  const auto take = [&](int ranks) {
    set_threads(asked > 0 ? asked : default_threads(ranks, world.local_size()));
  };
  lamina::detail::unbind_kernels();  // in a job that goes on without ranks that were lost
  if (world.late()) {                // the others do not take part
    take(world.local_size());
    if (world.local_size() == 1) bind_threads();
    return;
  }
  set_threads(1);  // which a look at the processors needs no more of
  const std::vector<Share> before = shares_of(world);
  const auto me = std::size_t(world.rank());
  std::vector<std::size_t> sharers;  // this rank among them
  bool alike = true;
  for (std::size_t r = 0; r < before.size(); ++r) {
    const cpu_set_t &mine = before[me].processors, &theirs = before[r].processors;
    cpu_set_t both;
    CPU_AND(&both, &mine, &theirs);
    if (world.hosts()[r] != world.hosts()[me] || (CPU_COUNT(&both) == 0 && r != me)) continue;
    sharers.push_back(r);
    alike = alike && CPU_EQUAL(&mine, &theirs);
  }
  take(int(sharers.size()));
  const std::vector<Share> now = shares_of(world);
  for (const std::size_t r : sharers) alike = alike && now[r].threads == now[me].threads;
  if (alike)
    bind_threads(int(std::ranges::find(sharers, me) - sharers.begin()), int(sharers.size()));
}

std::string crowding(const World& world) {
  const std::vector<Share> shares = shares_of(world);
  const std::vector<std::string>& hosts = world.hosts();

  std::string lines;
  for (std::size_t first = 0; first < shares.size(); ++first) {
    const auto begin = hosts.begin(), it = begin + std::ptrdiff_t(first);
    if (std::find(begin, it, *it) != it) continue;  // a host that we have had
    cpu_set_t all;
    CPU_ZERO(&all);
    int ranks = 0, threads = 0, quota = CPU_SETSIZE;
    bool known = true;
    for (std::size_t r = first; r < shares.size(); ++r) {
      if (hosts[r] != *it) continue;
      CPU_OR(&all, &all, &shares[r].processors);
      known = known && CPU_COUNT(&shares[r].processors) > 0;
      ++ranks, threads += shares[r].threads;
      quota = std::min(quota, shares[r].quota);
    }
    const int processors = std::min(CPU_COUNT(&all), quota);
    if (!known || threads <= processors) continue;
    append(lines, text("# warning: ", *it, ": ", threads, " threads of ", ranks,
                       ranks == 1 ? " rank on " : " ranks on ", processors,
                       processors == 1 ? " processor" : " processors",
                       processors < CPU_COUNT(&all) ? " (quota of a control group)" : "",
                       "\n#   They wait for each other; expected --threads ",
                       std::max(1, processors / ranks)));
    append(lines, ranks > processors ? text(" and at most ", processors, " of the ranks\n") : "\n");
  }
  return lines;
}

}  // namespace lamina::cli
