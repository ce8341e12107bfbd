// A GPU's way to run kernels, emulated: what `kernels/*.cu` need so that they compile as C++. A
// block runs at a time, in an order by chance, each of its threads as one of the system's; so the
// sanitizers for threads and addresses see what is wrong with them. Not seen: what blocks do to one
// another at the same time, and what is read of shared memory before it was written.
#pragma once

#include <lamina/tensor/dtype.hpp>

#include <algorithm>
#include <barrier>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__ static  // of all threads, since there is one block at a time

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr unsigned count() const { return x * y * z; }
};

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };

namespace lamina::cuda {

using BF16 = lamina::BF16;
using F16 = lamina::F16;
constexpr std::int64_t most_blocks = 3;  // so few that each has more to do, as on a GPU

namespace emulated {

constexpr unsigned warp = 32;

/// What the threads of the block that runs have in common.
struct Block {
  explicit Block(unsigned threads) : all(threads), slots(threads) {
    for (unsigned first = 0; first < threads; first += warp)
      warps.emplace_back(std::make_unique<std::barrier<>>(std::min(warp, threads - first)));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<double> slots;  ///< what threads tell those of their warp
};
inline Block* block = nullptr;
inline thread_local unsigned thread_number = 0;

/// What the lane has that this one's number differs from in these bits.
inline double from_lane(double v, unsigned bits) {
  std::barrier<>& all = *block->warps[thread_number / warp];
  block->slots[thread_number] = v;
  all.arrive_and_wait();
  const double other = block->slots.at(thread_number ^ bits);
  all.arrive_and_wait();
  return other;
}

/// Runs `thread` for each of each block; returns when all have.
template <class Thread>
cudaError_t run(dim3 grid, dim3 threads, const Thread& thread) {
  if (threads.count() == 0 || threads.count() > 1024 || threads.z > 64 || grid.count() == 0 ||
      grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  static std::mutex one_at_a_time;
  static std::minstd_rand random;
  const std::lock_guard lock(one_at_a_time);
  std::vector<unsigned> order(grid.count());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  gridDim = grid, blockDim = threads;
  Block shared(threads.count());
  block = &shared;
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads.count(); ++t)
    workers.emplace_back([&, t] {
      thread_number = t;
      threadIdx = {t % threads.x, t / threads.x % threads.y, t / threads.x / threads.y};
      for (const unsigned b : order) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        thread();
        shared.all.arrive_and_wait();
      }
    });
  for (std::thread& worker : workers) worker.join();
  return cudaSuccess;
}

}  // namespace emulated

template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  return emulated::run(grid, block, [&] { kernel(Parameters(arguments)...); });
}

}  // namespace lamina::cuda

/// All threads of the block must come here, as often as any.
inline void __syncthreads() { lamina::cuda::emulated::block->all.arrive_and_wait(); }
/// Of whole warps: all of a warp's threads must come here.
template <class T>
T __shfl_xor_sync(unsigned /*lanes*/, T v, int bits) {
  return T(lamina::cuda::emulated::from_lane(double(v), unsigned(bits)));
}
