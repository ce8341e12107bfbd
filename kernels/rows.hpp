// Work on values [rows][channels]: each thread has V channels side by side, and every so many rows.
#pragma once

#include "elements.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace lamina::cuda {

constexpr int block_threads = 256;

/// How rows and channels are dealt out: in batches of rows, of which each thread has as many. It
/// depends on their numbers alone, so that sums are added up in the same order on every GPU.
struct Tiles {
  dim3 grid, block;

  Tiles(std::int64_t rows, int channels, int v) {
    constexpr std::int64_t least = 2;  // since what a thread needs of its channels takes time, too
    const unsigned packs = unsigned(channels + v - 1) / unsigned(v);
    const unsigned across = std::min(std::bit_ceil(packs), 32U);
    const unsigned along = block_threads / across;
    const unsigned columns = (packs + across - 1) / across;
    const std::int64_t batches = (rows + along * batch - 1) / (along * batch);
    const std::int64_t most = std::max<std::int64_t>(1, most_blocks / columns);
    const std::int64_t each = std::max(least, (batches + most - 1) / most);
    grid = dim3(columns, unsigned(std::max<std::int64_t>(1, (batches + each - 1) / each)));
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

/// Rows that are this thread's, as each_batch() takes them: multiplied by `width`, which is how far
/// one is behind the other, and with `at` as the first of all.
struct Rows {
  std::int64_t first, step, stride;

  __device__ Rows(std::int64_t width, std::int64_t at)
      : first((std::int64_t(blockIdx.y) * batch * blockDim.y + threadIdx.y) * width + at),
        step(blockDim.y * width),
        stride(step * batch * gridDim.y) {}
};

/// Calls use(at, step, items) for batches of rows of this thread: the V channels of the first one
/// begin with number `at` of all elements, those of each other one `step` behind, and items are
/// what read() of these numbers gives.
template <int V, class Read, class Use>
__device__ void each_batch_of_rows(std::int64_t rows, int channels, const Read& read,
                                   const Use& use) {
  const int channel = first_channel<V>();
  if (channel >= channels) return;
  const Rows own(channels, channel);
  each_batch<batch>(own.first, own.step, own.stride, rows * channels, read,
                    [&](std::int64_t at, const auto& items) { use(at, own.step, items); });
}

/// Calls use(at, read(at)) for each of these rows.
template <int V, class Read, class Use>
__device__ void each_row(std::int64_t rows, int channels, const Read& read, const Use& use) {
  const int channel = first_channel<V>();
  if (channel >= channels) return;
  const Rows own(channels, channel);
  each_item<batch>(own.first, own.step, own.stride, rows * channels, read, use);
}

/// Of some sums of each channel, which the threads of a block have parts of: those of the block, to
/// partials[blockIdx.y][Sums][channels]. Called by all threads.
template <int V, int Sums>
__device__ void add_up(const double (&sums)[Sums][V], int channels, double* partials) {
  __shared__ double parts[V][block_threads + 2];  // two more: columns are read without conflicts
  const int across = int(blockDim.x), thread = int(threadIdx.y) * across + int(threadIdx.x);
  const int x = thread / V, channel = int(blockIdx.x) * across * V + thread;
  double* const to = partials + std::int64_t(blockIdx.y) * Sums * channels + channel;
  for (int s = 0; s < Sums; ++s) {
    for (int v = 0; v < V; ++v) parts[v][thread] = sums[s][v];
    __syncthreads();
    if (x < across && channel < channels) {
      double sum = 0;
      for (int i = x; i < block_threads; i += across) sum += parts[thread % V][i];
      to[std::int64_t(s) * channels] = sum;
    }
    __syncthreads();
  }
}

/// Bytes of partials, however many channels a thread has.
inline std::size_t partial_bytes(std::int64_t rows, int channels, int sums, DType dtype) {
  const unsigned blocks = std::max(Tiles(rows, channels, 1).grid.y,
                                   Tiles(rows, channels, 16 / int(size_of(dtype))).grid.y);
  return std::size_t(blocks) * std::size_t(sums * channels) * sizeof(double);
}

constexpr int fold_width = 8;  // few, so that there are many threads for each

/// Calls f(i, sum) for i < count: that of partials[blocks][count], in the order of the blocks. The
/// whole block comes here, which launch_fold() has started.
template <class F>
__device__ void fold(const double* partials, int blocks, int count, const F& f) {
  __shared__ double parts[block_threads];
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  double sum = 0;
  if (i < count)
    each_batch<2 * batch>(
        threadIdx.y, blockDim.y, 2 * batch * blockDim.y, blocks,
        [&](std::int64_t b) { return partials[b * count + i]; },
        [&](std::int64_t, const auto& items) {
          LAMINA_UNROLL
          for (const double part : items) sum += part;
        });
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
