// Which GPUs a thread of the stand-in for CUDA's runtime sees, and which of them reach the memory
// of which.
#include "fake/stream.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

struct CUmemPoolHandle_st {};

namespace {

thread_local int seen = 0;    // of the machine's, number 0 here
thread_local int chosen = 0;  // of those that are seen
std::atomic<int> gpus = 1;
std::atomic<int> driver = lamina::test::fake_cuda;

constexpr int most = 8;
CUmemPoolHandle_st pools[most];
std::mutex guard;
std::set<std::pair<int, int>> granted;  // who, to whose memory

bool there(int number) { return number >= 0 && number < gpus; }

}  // namespace

void lamina::test::see_gpu(int number) { seen = number; }
void lamina::test::fake_gpus(int count) { gpus = count; }
void lamina::test::fake_driver(int version) { driver = version; }
int lamina::test::chosen_gpu() { return chosen; }
bool lamina::test::reaches(int gpu, int other) {
  const std::lock_guard lock(guard);
  return gpu == other || granted.contains({gpu, other});
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = driver < lamina::test::fake_cuda ? 0 : gpus.load();
  if (driver < lamina::test::fake_cuda) return cudaErrorInsufficientDriver;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = lamina::test::fake_cuda;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int number) {
  if (const cudaError_t why = lamina::test::refused()) return why;
  if (!there(number)) return cudaErrorInvalidDevice;
  chosen = number;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* number) {
  *number = chosen;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int number) {
  if (const cudaError_t why = lamina::test::refused()) return why;
  if (!there(number)) return cudaErrorInvalidDevice;
  *to = {};
  std::strcpy(to->name, "Fake GPU");
  to->uuid.bytes[0] = char(seen + number);
  to->major = 8, to->multiProcessorCount = 2, to->l2CacheSize = 1 << 16;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int other) {
  if (!there(gpu) || !there(other)) return cudaErrorInvalidDevice;
  *can = gpu != other;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* to, int number) {
  if (!there(number)) return cudaErrorInvalidDevice;
  *to = &pools[number];
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 std::size_t count) {
  const std::lock_guard lock(guard);
  for (std::size_t i = 0; i < count; ++i) {
    const cudaMemAccessDesc& a = access[i];
    if (a.location.type != cudaMemLocationTypeDevice || !there(a.location.id) ||
        a.flags != cudaMemAccessFlagsProtReadWrite)
      return cudaErrorInvalidValue;
    granted.insert({a.location.id, int(pool - pools)});
  }
  return cudaSuccess;
}
