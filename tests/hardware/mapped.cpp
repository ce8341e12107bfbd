// Memory of a GPU's that tests can look into is the host's, mapped for the GPU: calls of the back
// end come here by the linker's --wrap.
#include "gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace {

/// What has been freed is taken again: the driver maps memory slowly, and stops the GPU to unmap
/// it. Tests end with the process, and so does their memory.
struct Mapped {
  std::mutex guard;
  std::map<void*, std::size_t> sizes;
  std::map<std::size_t, std::vector<void*>> free;

  cudaError_t take(void** to, std::size_t bytes) {
    const std::lock_guard lock(guard);
    const std::size_t size = std::bit_ceil(bytes);
    if (auto& some = free[size]; !some.empty()) {
      *to = some.back(), some.pop_back();
      return cudaSuccess;
    }
    const cudaError_t why = cudaHostAlloc(to, size, cudaHostAllocMapped);
    if (why == cudaSuccess) sizes[*to] = size;
    return why;
  }
  bool has(void* memory) {
    const std::lock_guard lock(guard);
    return sizes.contains(memory);
  }
  void give_back(void* memory) {
    const std::lock_guard lock(guard);
    free[sizes.at(memory)].push_back(memory);
  }
};

Mapped& mapped() {
  static auto& all = *new Mapped;
  return all;
}

}  // namespace

extern "C" {

cudaError_t __real_cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream);
cudaError_t __real_cudaFreeAsync(void* memory, cudaStream_t stream);

cudaError_t __wrap_cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream) {
  return lamina::test::host_looks_in ? mapped().take(to, bytes)
                                     : __real_cudaMallocAsync(to, bytes, stream);
}

cudaError_t __wrap_cudaFreeAsync(void* memory, cudaStream_t stream) {
  if (!mapped().has(memory)) return __real_cudaFreeAsync(memory, stream);
  if (const cudaError_t why = cudaStreamSynchronize(stream)) return why;  // what is before it
  mapped().give_back(memory);
  return cudaSuccess;
}

}  // extern "C"
