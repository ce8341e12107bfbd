// Dropout on a GPU: with the masks of lamina/kernels/dropout_mask.hpp, as on the CPU.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/step_values.hpp>
#include <lamina/tensor/box.hpp>

namespace lamina::cuda {

/// x and y are the block `box` of a tensor of shape `whole`; they lie n-h-w-c. A sample of it has
/// less than 2^31 elements.
struct Dropout {
  DType dtype = DType::f32;
  double rate = 0;
  Shape whole = {};
  Box box = {};
};

/// y = mask x / (1 - rate); y may be x.
cudaError_t drop_out(cudaStream_t, const Dropout&, const StepValues* now, std::int32_t layer,
                     const void* x, void* y);

}  // namespace lamina::cuda
