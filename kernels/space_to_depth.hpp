// Space to depth: images of which a block of positions becomes the channels of one, with zeros
// around them. With blocks of one position it is padding.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/dtype.hpp>

namespace lamina::cuda {

/// y[n][i][j][(a * block.w + b) * x.c + c] = x[n][i * block.h + a - top][j * block.w + b - left][c]
/// for a < block.h and b < block.w, and 0 where that is outside of x, or y has more channels. y has
/// as many samples, and need not have all of x. A sample, zeros and all, has less than 2^31
/// elements.
struct SpaceToDepth {
  DType dtype = DType::f32;
  Shape x = {}, y = {};  ///< which lie n-h-w-c
  Pair block = 1;
  std::int64_t top = 0, left = 0;  ///< rows and columns of zeros before x
};

cudaError_t space_to_depth(cudaStream_t, const SpaceToDepth&, const void* x, void* y);
/// Back from y, which has all of x, to an x of that type or the one that it is summed up in.
cudaError_t depth_to_space(cudaStream_t, const SpaceToDepth&, const void* y, DType x_type, void* x);

}  // namespace lamina::cuda
