// Work on values [rows][channels]: each thread has V channels side by side, and every so many rows.
#pragma once

#include "elements.hpp"

#include <algorithm>
#include <bit>

namespace lamina::cuda {

constexpr int block_threads = 256;

/// How rows and channels are dealt out. It depends on their numbers alone, so that sums are added
/// up in the same order on every GPU.
struct Tiles {
  dim3 grid, block;

  Tiles(std::int64_t rows, int channels, int v) {
    constexpr std::int64_t rows_each = 8;
    const unsigned packs = unsigned(channels + v - 1) / unsigned(v);
    const unsigned across = std::min(std::bit_ceil(packs), 32U);
    const unsigned along = block_threads / across;
    const unsigned columns = (packs + across - 1) / across;
    const std::int64_t wanted = (rows + along * rows_each - 1) / (along * rows_each);
    const std::int64_t most = std::max<std::int64_t>(1, most_blocks / columns);
    grid = dim3(columns, unsigned(std::clamp<std::int64_t>(wanted, 1, most)));
    block = dim3(across, along);
  }
};

/// The first of this thread's V channels; there may be none.
template <int V>
__device__ int first_channel() {
  return int(blockIdx.x * blockDim.x + threadIdx.x) * V;
}

/// What this thread's channels have there; `otherwise` where nothing is there.
template <class F, class W, int V>
__device__ void load_channels(const F* from, int channels, W (&to)[V], W otherwise = 0) {
  const int channel = first_channel<V>();
  for (int v = 0; v < V; ++v) to[v] = from && channel < channels ? W(from[channel + v]) : otherwise;
}

/// Calls f(channel, row) for what is this thread's.
template <int V, class F>
__device__ void each_row(std::int64_t rows, int channels, const F& f) {
  const int channel = first_channel<V>();
  if (channel >= channels) return;
  const std::int64_t step = std::int64_t(gridDim.y) * blockDim.y;
  for (std::int64_t row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += step)
    f(channel, row);
}

/// Of two sums of each channel, which the threads of a block have parts of: those of the block, to
/// partials[blockIdx.y][2][channels]. Called by all threads.
template <int V>
__device__ void add_up(const double (&a)[V], const double (&b)[V], int channels, double* partials) {
  __shared__ double of_a[block_threads], of_b[block_threads];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int channel = first_channel<V>();
  double* const to = partials + std::int64_t(blockIdx.y) * 2 * channels + channel;
  for (int v = 0; v < V; ++v) {
    of_a[thread] = a[v], of_b[thread] = b[v];
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y >= half) continue;
      of_a[thread] += of_a[thread + half * blockDim.x];
      of_b[thread] += of_b[thread + half * blockDim.x];
    }
    if (threadIdx.y == 0 && channel < channels)
      to[v] = of_a[thread], to[channels + v] = of_b[thread];
    __syncthreads();
  }
}

}  // namespace lamina::cuda
