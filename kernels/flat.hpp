// Work on so many elements, whose order does not matter.
#pragma once

#include "launch.hpp"

#include <algorithm>
#include <cstdint>

namespace lamina::cuda {

constexpr int flat_threads = 256;

/// Calls f(i) for what is this thread's.
template <class F>
__device__ void each_element(std::int64_t count, const F& f) {
  const std::int64_t step = std::int64_t(gridDim.x) * flat_threads;
  for (std::int64_t i = std::int64_t(blockIdx.x) * flat_threads + threadIdx.x; i < count; i += step)
    f(i);
}

/// Starts a kernel that does; for no elements, none.
template <class Kernel, class... Arguments>
cudaError_t launch_flat(cudaStream_t stream, std::int64_t count, Kernel kernel,
                        Arguments... arguments) {
  if (count == 0) return cudaSuccess;
  const std::int64_t blocks = std::min((count + flat_threads - 1) / flat_threads, most_blocks);
  return launch(stream, dim3(unsigned(blocks)), dim3(flat_threads), kernel, arguments...);
}

}  // namespace lamina::cuda
