// A GPU's way to run kernels, emulated: what `kernels/*.cu` need so that they compile as C++. A
// block runs at a time, in an order by chance, its threads as those of the system or, where
// LAMINA_FIBERS is defined, as fibers. Not seen: what blocks do to one another at the same time,
// and what is read of shared memory before it was written.
#pragma once

#include "runtime.hpp"
#ifdef LAMINA_FIBERS
#include "fibers.hpp"
#else
#include "threads.hpp"
#endif

#include <lamina/tensor/dtype.hpp>

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
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

namespace lamina::cuda {

using BF16 = lamina::BF16;
using F16 = lamina::F16;
/// Two rounded numbers in a word.
template <class T>
std::uint32_t narrow_two(T, float first, float second) {
  return std::uint32_t(std::bit_cast<std::uint16_t>(T(second))) << 16 |
         std::bit_cast<std::uint16_t>(T(first));
}
constexpr std::int64_t most_blocks = 3;  // so few that each has more to do, as on a GPU

namespace emulated {

constexpr unsigned warp = 32;

/// What the threads of the block that runs have in common.
struct Block {
  explicit Block(unsigned threads) : all(threads), slots(threads) {
    for (unsigned first = 0; first < threads; first += warp)
      warps.emplace_back(std::make_unique<Barrier>(std::min(warp, threads - first)));
  }
  Barrier all;
  std::vector<std::unique_ptr<Barrier>> warps;
  std::vector<double> slots;  ///< what threads tell those of their warp
};
inline Block* block = nullptr;
inline std::mutex one_at_a_time;  // whichever kernel it is
inline thread_local unsigned thread_number = 0;

/// What the lane has that this one's number differs from in these bits.
inline double from_lane(double v, unsigned bits) {
  Barrier& all = *block->warps[thread_number / warp];
  block->slots[thread_number] = v;
  all.arrive_and_wait();
  const double other = block->slots.at(thread_number ^ bits);
  all.arrive_and_wait();
  return other;
}

/// Whether a GPU runs such a grid.
constexpr bool possible(dim3 grid, dim3 threads) {
  return threads.count() > 0 && threads.count() <= 1024 && threads.z <= 64 && grid.count() > 0 &&
         grid.y <= 65535 && grid.z <= 65535;
}

/// Runs `thread` for each of each block; returns when all have.
template <class Thread>
void run(dim3 grid, dim3 threads, const Thread& thread) {
  static std::minstd_rand random;
  const std::lock_guard lock(one_at_a_time);
  std::vector<unsigned> order(grid.count());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  gridDim = grid, blockDim = threads;
  Block shared(threads.count());
  block = &shared;
  const auto enter = [&](unsigned b, unsigned t) {
    thread_number = t;
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    threadIdx = {t % threads.x, t / threads.x % threads.y, t / threads.x / threads.y};
  };
  run_together(order, threads.count(), enter, thread);
}

}  // namespace emulated

template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  if (!emulated::possible(grid, block)) return cudaErrorInvalidConfiguration;
  const auto run = [=] { emulated::run(grid, block, [&] { kernel(Parameters(arguments)...); }); };
  if (stream) return stream->put(run);
  run();  // without a stream at once
  return cudaSuccess;
}

}  // namespace lamina::cuda

/// All threads of the block must come here, as often as any.
inline void __syncthreads() { lamina::cuda::emulated::block->all.arrive_and_wait(); }
/// Of whole warps: all of a warp's threads must come here.
template <class T>
T __shfl_xor_sync(unsigned /*lanes*/, T v, int bits) {
  return T(lamina::cuda::emulated::from_lane(double(v), unsigned(bits)));
}
