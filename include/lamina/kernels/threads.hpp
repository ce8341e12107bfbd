// The threads that kernels on the CPU use.
#pragma once

namespace lamina {

/// Processors that this process may run on.
int processors();

/// Threads of the kernels that the calling thread runs.
int threads();
void set_threads(int n);

/// A good number for one of `local_ranks` ranks on a host: OMP_NUM_THREADS if set; all processors
/// that this process is bound to; or else its share of the host's.
int default_threads(int local_ranks);

}  // namespace lamina
