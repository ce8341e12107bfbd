// Which processors this process may run on.
#pragma once

#include <sched.h>

namespace lamina::detail {

/// Those of the calling thread, or of all places where OpenMP binds threads to one each
/// (OMP_PROC_BIND); none where the system does not say.
cpu_set_t processor_set();

}  // namespace lamina::detail
