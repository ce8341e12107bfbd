// Layouts and types of elements on a GPU.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

/// y[n][b][a] of x[n][a][b], each of its own dtype: plain values to n-h-w-c with a channels of b
/// positions each, and back with the two exchanged. With a or b of 1 it is a conversion, else both
/// are less than 2^31.
cudaError_t reorder(cudaStream_t, DType x_type, const void* x, DType y_type, void* y,
                    std::int64_t n, std::int64_t a, std::int64_t b);

}  // namespace lamina::cuda
