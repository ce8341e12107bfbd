// Threads that are none of the kernels', where those are bound to processors.
#pragma once

namespace lamina {

/// Lets the calling thread run on all processors of the process. A thread starts where the one that
/// made it may run, and that is one processor where OpenMP binds its threads (OMP_PROC_BIND).
void unbind_thread();

}  // namespace lamina
