// Work on rows: a warp for each, and every so many rows.
#pragma once

#include "launch.hpp"

#include <algorithm>
#include <cstdint>

namespace lamina::cuda {

constexpr int warp = 32, warps = 8;  // of a block
constexpr unsigned all_lanes = ~0U;

__device__ inline double warp_sum(double v) {
  for (int lanes = warp / 2; lanes > 0; lanes /= 2) v += __shfl_xor_sync(all_lanes, v, lanes);
  return v;
}
/// Of numbers.
__device__ inline double warp_largest(double v) {
  for (int lanes = warp / 2; lanes > 0; lanes /= 2) {
    const double other = __shfl_xor_sync(all_lanes, v, lanes);
    v = other > v ? other : v;
  }
  return v;
}

/// Calls f(row, lane) for the rows of this warp; all of its lanes are there.
template <class F>
__device__ void each_row_of_warp(std::int64_t rows, const F& f) {
  const std::int64_t step = std::int64_t(gridDim.x) * warps;
  for (std::int64_t row = std::int64_t(blockIdx.x) * warps + threadIdx.y; row < rows; row += step)
    f(row, int(threadIdx.x));
}

/// Starts a kernel that does.
template <class Kernel, class... Arguments>
cudaError_t launch_rows(cudaStream_t stream, std::int64_t rows, Kernel kernel,
                        Arguments... arguments) {
  const std::int64_t blocks = std::clamp<std::int64_t>((rows + warps - 1) / warps, 1, most_blocks);
  return launch(stream, dim3(unsigned(blocks)), dim3(warp, warps), kernel, arguments...);
}

}  // namespace lamina::cuda
