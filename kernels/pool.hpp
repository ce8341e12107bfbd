// Pooling on a GPU: maximum and average over windows.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstddef>

namespace lamina::cuda {

/// x and y lie n-h-w-c. The first of equal elements wins and gets the whole gradient, NaN wins over
/// numbers, and padding never wins. A sample has less than 2^31 elements, and so has a window.
struct Pool {
  DType dtype = DType::f32;
  PoolGeometry geometry = {};
  Shape x = {};
};

cudaError_t pool(cudaStream_t, const Pool&, const void* x, void* y);

/// Bytes that pool_grad wants to write to beside its result.
std::size_t pool_workspace(const Pool&);
/// Of a maximum reads x, of an average does not. Adds up in the order of the windows.
cudaError_t pool_grad(cudaStream_t, const Pool&, const void* x, const void* dy, void* dx,
                      void* workspace);

}  // namespace lamina::cuda
