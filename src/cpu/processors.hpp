// Which processors kernels run on.
#pragma once

#include <sched.h>

namespace lamina::detail {

/// Those on which the threads of the kernels that the calling thread runs may run: where OpenMP
/// binds them (OMP_PROC_BIND), one for each. None where the system does not say.
cpu_set_t processors_of_kernels();

/// Undoes bind_threads() for the kernels' threads of the calling thread.
void unbind_kernels();

}  // namespace lamina::detail
