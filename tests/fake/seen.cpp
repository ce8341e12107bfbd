// Which GPU a thread of the stand-in for CUDA's runtime sees.
#include "fake/runtime.hpp"

#include <cstring>

namespace {

thread_local int seen = 0;  // of the machine's

}  // namespace

void lamina::test::see_gpu(int number) { seen = number; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int number) {
  if (const cudaError_t why = cudaSetDevice(number)) return why;
  *to = {};
  std::strcpy(to->name, "Fake GPU");
  to->uuid.bytes[0] = char(seen);
  to->major = 8, to->multiProcessorCount = 2, to->l2CacheSize = 1 << 16;
  return cudaSuccess;
}
