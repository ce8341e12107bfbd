// Which processors kernels run on, and how much of them they may have.
#pragma once

#include <sched.h>

#include <filesystem>

namespace lamina::detail {

/// Those on which the threads of the kernels that the calling thread runs may run: where OpenMP
/// binds them (OMP_PROC_BIND), one for each. None where the system does not say.
cpu_set_t processors_of_kernels();

/// Undoes bind_threads() for the kernels' threads of the calling thread.
void unbind_kernels();

/// How many processors' time the control groups of this process let it have (`docker --cpus`,
/// limits of Kubernetes): the least of its group and those above it, which may be a fraction; of
/// no limit, or one beyond any host, CPU_SETSIZE. The root of the file system is `root`.
double processor_quota(const std::filesystem::path& root = "/");
/// As whole ones. A fraction is worth a thread, since nobody else has that time.
int whole_quota();

}  // namespace lamina::detail
