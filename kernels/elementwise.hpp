// Element by element on a GPU: activations and sums; and parts of rows, for concatenations.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::cuda {

/// y = activation(x); y may be x.
cudaError_t activate(cudaStream_t, const Activation&, DType, std::int64_t count, const void* x,
                     void* y);
/// dx = dy * activation'(where the value is y); dx may be dy.
cudaError_t activate_grad(cudaStream_t, const Activation&, DType, std::int64_t count, const void* y,
                          const void* dy, void* dx);
/// y = a + b; y may be either.
cudaError_t add(cudaStream_t, DType, std::int64_t count, const void* a, const void* b, void* y);

/// Of `rows` rows, that lie so many elements apart, the first `width` elements, less than 2^31.
cudaError_t copy_rows(cudaStream_t, DType, std::int64_t rows, std::int64_t width, const void* from,
                      std::int64_t from_stride, void* to, std::int64_t to_stride);

}  // namespace lamina::cuda
