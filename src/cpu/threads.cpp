// Threads of the kernels: OpenMP's.
#include <lamina/kernels/threads.hpp>

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace lamina {

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
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
