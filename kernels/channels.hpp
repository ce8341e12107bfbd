// Along the channels of each position on a GPU: local response normalisation and softmax. x and y
// are [rows][channels], the rows being all positions of all samples.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

struct Lrn {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  int channels = 0;
  LrnGeometry geometry = {};
};

/// Channels on either side, of those that there are, that lrn_grad takes at most.
constexpr int most_neighbours = 500;

cudaError_t lrn(cudaStream_t, const Lrn&, const void* x, void* y);
cudaError_t lrn_grad(cudaStream_t, const Lrn&, const void* x, const void* dy, void* dx);

/// y may be x.
cudaError_t softmax(cudaStream_t, DType, std::int64_t rows, int channels, const void* x, void* y);
/// dx may be dy.
cudaError_t softmax_grad(cudaStream_t, DType, std::int64_t rows, int channels, const void* y,
                         const void* dy, void* dx);

}  // namespace lamina::cuda
