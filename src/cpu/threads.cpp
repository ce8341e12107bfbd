// Threads of the kernels: OpenMP's.
#include "cpu/processors.hpp"

#include <lamina/base/unbind_thread.hpp>
#include <lamina/kernels/threads.hpp>

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

namespace lamina {
namespace {

/// Those that the process could run on before bind_threads().
std::optional<cpu_set_t> unbound;
/// Whether the kernels' threads of this thread are bound by it.
thread_local bool bound_here = false;

/// Those of the calling thread, or of all places where OpenMP binds threads to one each; none where
/// the system does not say.
cpu_set_t processor_set() {
  if (unbound) return *unbound;
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

/// Each thread of the kernels to one of the processors `all`, in their order.
void bind_to(const cpu_set_t& all) {
#pragma omp parallel
  {
    int mine = omp_get_thread_num() % CPU_COUNT(&all);
    std::size_t processor = 0;
    while (!CPU_ISSET(processor, &all) || mine-- > 0) ++processor;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
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

int processors() {
  const cpu_set_t set = processor_set();
  return std::max(1, CPU_COUNT(&set));
}

void unbind_thread() {
  const cpu_set_t set = processor_set();
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

int threads() { return omp_get_max_threads(); }

void set_threads(int n) {
  omp_set_num_threads(std::max(1, n));
  if (bound_here) bind_to(*unbound);  // new ones begin where this one is
}

bool bind_threads() {
  if (std::getenv("OMP_PROC_BIND") || threads() != processors()) return false;
  if (!unbound) unbound = processor_set();
  if (CPU_COUNT(&*unbound) == 0) return false;
  bind_to(*unbound);
  return bound_here = true;
}

void give_way() {
  // On Linux of this thread alone. Who has 5 more gets a third of what another one gets.
  [[maybe_unused]] const int now = nice(5);
}

int default_threads(int local_ranks) {
  if (const char* set = std::getenv("OMP_NUM_THREADS"))
    if (const int n = std::atoi(set); n > 0) return n;
  const bool bound = processors() < sysconf(_SC_NPROCESSORS_ONLN);
  return bound ? processors() : std::max(1, processors() / std::max(1, local_ranks));
}

}  // namespace lamina
