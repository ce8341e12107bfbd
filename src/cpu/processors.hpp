// Which processors kernels run on, how much of them they may have, and with how many threads.
#pragma once

#include <sched.h>

#include <filesystem>

namespace lamina::detail {

/// Those on which the threads of the kernels that the calling thread runs may run: where OpenMP
/// binds them (OMP_PROC_BIND), one for each. None where the system does not say.
cpu_set_t processors_of_kernels();

/// Has OpenMP give the calling thread teams as large as it says they are: not fewer threads by what
/// others do (OMP_DYNAMIC), and no more announced than it may have (OMP_THREAD_LIMIT; one within a
/// parallel region). oneDNN shares out its work by what is announced, and leaves undone what would
/// be a missing thread's. To be called before each of its kernels is made, and runs. Returns how
/// many the thread may have.
int settle_team();

/// Undoes bind_threads() for the kernels' threads of the calling thread.
void unbind_kernels();

/// How many processors' time the control groups of this process let it have (`docker --cpus`,
/// limits of Kubernetes): the least of its group and those above it, which may be a fraction; of
/// no limit, or one beyond any host, CPU_SETSIZE. The root of the file system is `root`.
double processor_quota(const std::filesystem::path& root = "/");
/// As whole ones. A fraction is worth a thread, since nobody else has that time.
int whole_quota();

}  // namespace lamina::detail
