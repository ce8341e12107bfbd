// Memory of a GPU's that tests can look into is the host's, mapped for the GPU: calls of the back
// end come here by the linker's --wrap.
#include "gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

extern "C" {

cudaError_t __real_cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream);
cudaError_t __real_cudaFreeAsync(void* memory, cudaStream_t stream);

cudaError_t __wrap_cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream) {
  return lamina::test::host_looks_in ? cudaHostAlloc(to, bytes, cudaHostAllocMapped)
                                     : __real_cudaMallocAsync(to, bytes, stream);
}

cudaError_t __wrap_cudaFreeAsync(void* memory, cudaStream_t stream) {
  cudaPointerAttributes attributes;
  if (const cudaError_t why = cudaPointerGetAttributes(&attributes, memory)) return why;
  if (attributes.type != cudaMemoryTypeHost) return __real_cudaFreeAsync(memory, stream);
  if (const cudaError_t why = cudaStreamSynchronize(stream)) return why;  // what is before it
  return cudaFreeHost(memory);
}

}  // extern "C"
