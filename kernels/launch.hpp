// What kernels of our own are written in: CUDA, but launch() in place of <<<>>>. So the same files
// compile as C++, too, over a small emulation of a GPU, and are tested without one.
#pragma once

#ifdef LAMINA_EMULATED
#include "emulation.hpp"
#define LAMINA_UNROLL
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

/// Before a loop over an array that is to be in registers: those have no numbers to count through.
#define LAMINA_UNROLL _Pragma("unroll")

namespace lamina::cuda {

/// Elements of DType::bf16 and f16 where kernels run.
using BF16 = __nv_bfloat16;
using F16 = __half;

/// Of a grid: enough to fill a GPU. Where there is more work, each block does some of it after the
/// other.
constexpr std::int64_t most_blocks = 1024;

#ifdef __CUDACC__
/// Rounds two numbers in one step, into the halves of a word, the lower one first.
__device__ inline std::uint32_t narrow_two(BF16, float first, float second) {
  return std::bit_cast<std::uint32_t>(__nv_bfloat162_raw(__floats2bfloat162_rn(first, second)));
}
__device__ inline std::uint32_t narrow_two(F16, float first, float second) {
  return std::bit_cast<std::uint32_t>(__half2_raw(__floats2half2_rn(first, second)));
}

/// Starts `kernel` on a grid of blocks; its arguments are converted to its parameters.
template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchConfig_t how = {};
  how.gridDim = grid, how.blockDim = block, how.stream = stream;
  return cudaLaunchKernelEx(&how, kernel, Parameters(arguments)...);
}
#endif

}  // namespace lamina::cuda
#endif
