// The threads that kernels on the CPU use.
#pragma once

namespace lamina {

/// Processors that this process may run on.
int processors();

/// Threads of the kernels that the calling thread runs.
int threads();
void set_threads(int n);

/// Binds each thread of the kernels that the calling thread runs, itself among them, to a processor
/// of its own, if there are as many as this process may run on: beside other load none then waits
/// on a processor for another of them. False, and nothing is done, if there are not, or if
/// OMP_PROC_BIND is set. For a process that has the machine to itself: two of them would bind to
/// the same processors. Other threads are let go by unbind_thread().
bool bind_threads();

/// From now on the calling thread, and those of its kernels, get a quarter of a processor that
/// another thread wants, and all of one that nobody does: for what is made ready while a training
/// goes on. To be called before it runs kernels; there is no way back.
void give_way();

/// A good number for one of `local_ranks` ranks on a host: OMP_NUM_THREADS if set; all processors
/// that this process is bound to; or else its share of the host's.
int default_threads(int local_ranks);

}  // namespace lamina
