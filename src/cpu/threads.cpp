// Threads of the kernels: OpenMP's.
#include "cpu/processors.hpp"

#include <lamina/base/text.hpp>
#include <lamina/base/threads.hpp>

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace lamina {
namespace {

/// Those that the process could run on before bind_threads().
std::optional<cpu_set_t> unbound;
std::mutex guard;  // of that
/// Where the kernels' threads of this thread are bound by it: the number of the first one's.
thread_local std::optional<int> first_bound;

/// Those of the calling thread, or of all places where OpenMP binds threads to one each; none where
/// the system does not say.
cpu_set_t processor_set() {
  {
    const std::lock_guard lock(guard);
    if (unbound) return *unbound;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool bound = omp_get_proc_bind() != omp_proc_bind_false;
  for (int place = 0; bound && place < omp_get_num_places(); ++place) {
    std::vector<int> of_place(std::size_t(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, of_place.data());
    for (const int processor : of_place) CPU_SET(std::size_t(processor), &set);
  }
  if (CPU_COUNT(&set) == 0 && sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

int all_processors() {
  const cpu_set_t set = processor_set();
  return std::max(1, CPU_COUNT(&set));
}

/// What the system says of a processor: the number of its "physical_package_id" or "core_id".
int part_of(std::size_t processor, const char* what) {
  int number = 0;
  std::ifstream(text("/sys/devices/system/cpu/cpu", processor, "/topology/", what)) >> number;
  return number;
}

/// Those that share a core lie side by side, and those of a socket, whatever their numbers: so do
/// the ranks' parts of them.
std::vector<std::size_t> in_order(const cpu_set_t& all) {
  std::vector<std::tuple<int, int, std::size_t>> places;
  for (std::size_t p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(p, &all))
      places.emplace_back(part_of(p, "physical_package_id"), part_of(p, "core_id"), p);
  std::ranges::sort(places);
  std::vector<std::size_t> processors;
  for (const auto& place : places) processors.push_back(std::get<2>(place));
  return processors;
}

/// Each thread of the kernels to one of the processors `all`, from that number on in their order.
void bind_to(const cpu_set_t& all, int first) {
  const std::vector<std::size_t> processors = in_order(all);
#pragma omp parallel
  {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[std::size_t(first + omp_get_thread_num()) % processors.size()], &one);
    sched_setaffinity(0, sizeof one, &one);
  }
}

}  // namespace

cpu_set_t detail::processors_of_kernels() {
  cpu_set_t all;
  CPU_ZERO(&all);
#pragma omp parallel
  {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
#pragma omp critical
    CPU_OR(&all, &all, &mine);
  }
  return all;
}

void detail::unbind_kernels() {
  if (!std::exchange(first_bound, {})) return;
  const cpu_set_t all = processor_set();
#pragma omp parallel
  sched_setaffinity(0, sizeof all, &all);
}

int processors() { return std::min(all_processors(), detail::whole_quota()); }

void unbind_thread() {
  const cpu_set_t set = processor_set();
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

int detail::settle_team() {
  omp_set_dynamic(0);
  const bool alone = omp_in_parallel() || omp_get_max_active_levels() <= 0;
  const int most = alone ? 1 : omp_get_thread_limit();
  if (omp_get_max_threads() > most) omp_set_num_threads(most);
  return most;
}

int threads() {
  detail::settle_team();
  return omp_get_max_threads();
}

void set_threads(int n) {
  omp_set_num_threads(std::max(1, n));
  detail::settle_team();
  if (first_bound) bind_to(processor_set(), *first_bound);  // new ones begin where this one is
}

bool bind_threads(int rank, int ranks) {
  detail::unbind_kernels();
  const cpu_set_t all = processor_set();
  if (std::getenv("OMP_PROC_BIND") || threads() * ranks != CPU_COUNT(&all)) return false;
  if (detail::processor_quota() < CPU_COUNT(&all)) return false;
  {
    const std::lock_guard lock(guard);
    unbound = all;
  }
  first_bound = rank * threads();
  bind_to(all, *first_bound);
  return true;
}

void give_way() {
  // On Linux of this thread alone. Who has 5 more gets a third of what another one gets.
  [[maybe_unused]] const int now = nice(5);
}

int default_threads(int ranks, int of_host) {
  if (const char* set = std::getenv("OMP_NUM_THREADS"))
    if (const int n = std::atoi(set); n > 0) return n;
  const int sharing = std::max(1, ranks);
  return std::max(
      1, std::min(all_processors() / sharing, detail::whole_quota() / std::max(sharing, of_host)));
}

}  // namespace lamina
