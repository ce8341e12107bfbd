// Calls of CUDA that fail become errors.
#pragma once

#include "kernels/launch.hpp"

#include <lamina/base/error.hpp>

namespace lamina::cuda {

/// Throws Error unless the call that was for `what` succeeded.
inline void ok(cudaError_t status, const char* what) {
  check(status == cudaSuccess, "CUDA: ", what, ": ", cudaGetErrorString(status));
}

}  // namespace lamina::cuda
