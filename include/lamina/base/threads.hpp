// The threads of a process: those that kernels on the CPU use, and all others.
#pragma once

namespace lamina {

/// Processors that this process may run on, or as many as it may have the time of, if that is less
/// (`docker --cpus`).
int processors();

/// Threads of the kernels that the calling thread runs: as many as OpenMP gives it, which may be
/// fewer than set_threads() or OMP_NUM_THREADS asked for (OMP_THREAD_LIMIT, or within a parallel
/// region). From then on they are as many for all else that the thread does with OpenMP, too, whose
/// OMP_DYNAMIC does not count.
int threads();
void set_threads(int n);

/// Binds each thread of the kernels that the calling thread runs, itself among them, to a processor
/// of its own: beside other load none then waits on a processor for another of them. This is number
/// `rank` of so many `ranks` that may run on the same processors, with as many threads each. False,
/// and none is bound, unless together they have a thread for each processor, or if OMP_PROC_BIND is
/// set, or a control group lets the process have less than all of these. For ranks that have the
/// machine to themselves: other programs that do so would bind to the same processors. Other
/// threads are let go by unbind_thread().
bool bind_threads(int rank = 0, int ranks = 1);

/// From now on the calling thread, and those of its kernels, get a quarter of a processor that
/// another thread wants, and all of one that nobody does: for what is made ready while a training
/// goes on. To be called before it runs kernels; there is no way back.
void give_way();

/// A good number for each of so many ranks that may run on the same processors: OMP_NUM_THREADS if
/// set, or else its share of these, or of the time of processors that all ranks `of_host` may have,
/// if that is less.
int default_threads(int ranks, int of_host = 0);

/// Lets the calling thread, which is none of the kernels', run on all processors of the process. A
/// thread starts where the one that made it may run, and that is one processor where OpenMP binds
/// its threads (OMP_PROC_BIND), or bind_threads() has done so.
void unbind_thread();

}  // namespace lamina
