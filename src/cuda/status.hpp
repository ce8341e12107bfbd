// Calls of CUDA that fail become errors.
#pragma once

#include "kernels/launch.hpp"

#include <lamina/base/error.hpp>

namespace lamina::cuda {

/// Whether all that this process asks of the GPU fails from then on.
inline bool ends_gpu(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

/// Throws Error unless the call that was for `what` succeeded.
inline void ok(cudaError_t status, const char* what) {
  check(status == cudaSuccess, "CUDA: ", what, ": ", cudaGetErrorString(status),
        ends_gpu(status) ? ": the GPU was lost, or a kernel failed on it" : "");
}

}  // namespace lamina::cuda
