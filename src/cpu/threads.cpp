// Threads of the kernels: OpenMP's.
#include "cpu/processors.hpp"

#include <lamina/base/unbind_thread.hpp>
#include <lamina/kernels/threads.hpp>

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace lamina {
namespace {

/// Those of the calling thread, or of all places where OpenMP binds threads to one each; none where
/// the system does not say.
cpu_set_t processor_set() {
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

void set_threads(int n) { omp_set_num_threads(std::max(1, n)); }

int default_threads(int local_ranks) {
  if (const char* set = std::getenv("OMP_NUM_THREADS"))
    if (const int n = std::atoi(set); n > 0) return n;
  const bool bound = processors() < sysconf(_SC_NPROCESSORS_ONLN);
  return bound ? processors() : std::max(1, processors() / std::max(1, local_ranks));
}

}  // namespace lamina
