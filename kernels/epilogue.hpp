// What is left to do with the result of a convolution or a product: its bias, what is added, ReLU.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

/// Of values [rows][channels].
struct Finish {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  int channels = 0;
  double slope = 1;  ///< of the activation below zero; 1 without one
};

/// y = activation(y + b + added), in place; b [channels], and what is null is absent.
cudaError_t finish(cudaStream_t, const Finish&, const void* b, const void* added, void* y);

}  // namespace lamina::cuda
