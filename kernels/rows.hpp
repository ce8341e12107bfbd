// Work on values [rows][channels]: each thread has V channels side by side, and every so many rows.
#pragma once

#include "elements.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

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

/// Of some sums of each channel, which the threads of a block have parts of: those of the block, to
/// partials[blockIdx.y][Sums][channels]. Called by all threads.
template <int V, int Sums>
__device__ void add_up(const double (&sums)[Sums][V], int channels, double* partials) {
  __shared__ double parts[Sums][block_threads];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int channel = first_channel<V>();
  double* const to = partials + std::int64_t(blockIdx.y) * Sums * channels + channel;
  for (int v = 0; v < V; ++v) {
    for (int s = 0; s < Sums; ++s) parts[s][thread] = sums[s][v];
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y >= half) continue;
      for (auto& part : parts) part[thread] += part[thread + half * blockDim.x];
    }
    if (threadIdx.y == 0 && channel < channels)
      for (int s = 0; s < Sums; ++s) to[s * channels + v] = parts[s][thread];
    __syncthreads();
  }
}

/// Bytes of partials, however many channels a thread has.
inline std::size_t partial_bytes(std::int64_t rows, int channels, int sums, DType dtype) {
  const unsigned blocks = std::max(Tiles(rows, channels, 1).grid.y,
                                   Tiles(rows, channels, 16 / int(size_of(dtype))).grid.y);
  return std::size_t(blocks) * std::size_t(sums * channels) * sizeof(double);
}

constexpr int fold_width = 32;

/// Calls f(i, sum) for i < count: that of partials[blocks][count], in the order of the blocks. The
/// whole block comes here, which launch_fold() has started.
template <class F>
__device__ void fold(const double* partials, int blocks, int count, const F& f) {
  __shared__ double parts[block_threads];
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  double sum = 0;
  if (i < count)
    for (int b = int(threadIdx.y); b < blocks; b += int(blockDim.y))
      sum += partials[std::int64_t(b) * count + i];
  parts[threadIdx.y * blockDim.x + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= count) return;
  for (unsigned y = 1; y < blockDim.y; ++y) sum += parts[y * blockDim.x + threadIdx.x];
  f(i, sum);
}

/// Starts a kernel that calls fold() for so many sums.
template <class Kernel, class... Arguments>
cudaError_t launch_fold(cudaStream_t stream, int count, Kernel kernel, Arguments... arguments) {
  const dim3 grid(unsigned(count + fold_width - 1) / fold_width);
  return launch(stream, grid, dim3(fold_width, block_threads / fold_width), kernel, arguments...);
}

}  // namespace lamina::cuda
