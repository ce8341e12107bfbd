// Work on so many elements, whose order does not matter.
#pragma once

#include "elements.hpp"

#include <algorithm>
#include <cstdint>

namespace lamina::cuda {

constexpr int flat_threads = 256;

/// Calls use(i, read(i)) for what is this thread's of so many elements: V of them, from number i
/// on.
template <int V, class Read, class Use>
__device__ void each_element(std::int64_t count, const Read& read, const Use& use) {
  constexpr std::int64_t step = flat_threads * V, stride = step * batch;
  each_item<batch>(blockIdx.x * stride + std::int64_t(threadIdx.x) * V, step, stride * gridDim.x,
                   count, read, use);
}

/// Starts a kernel that does; for no elements, none.
template <int V, class Kernel, class... Arguments>
cudaError_t launch_flat(cudaStream_t stream, std::int64_t count, Kernel kernel,
                        Arguments... arguments) {
  constexpr std::int64_t each = std::int64_t(flat_threads) * V * batch;
  if (count == 0) return cudaSuccess;
  const std::int64_t blocks = std::min((count + each - 1) / each, most_blocks);
  return launch(stream, dim3(unsigned(blocks)), dim3(flat_threads), kernel, arguments...);
}

}  // namespace lamina::cuda
