// The gradient of a bias on a GPU.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::cuda {

/// Bytes that bias_grad wants to write to beside its result.
std::size_t bias_workspace(DType, std::int64_t rows, int channels);
/// db[channels], of dtype `gradients`: the sums of dy[rows][channels], added up as f64 in an order
/// that depends on the sizes alone.
cudaError_t bias_grad(cudaStream_t, DType, std::int64_t rows, int channels, const void* dy,
                      DType gradients, void* db, void* workspace);

}  // namespace lamina::cuda
