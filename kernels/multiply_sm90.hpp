// What only GPUs of compute capability 9.0 have: products of a warp group's, from shared memory.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

constexpr int wgmma_steps = 16;  // instructions of a warp group, each time

/// See multiply(): for f32 (as TF32), bf16 and f16.
cudaError_t multiply_by_wgmma(cudaStream_t, DType, int blocks, std::int64_t times, double factor,
                              float* sums);

}  // namespace lamina::cuda
