// Calls of CUDA that fail become errors.
#pragma once

#include "kernels/launch.hpp"

#include <lamina/base/error.hpp>
#include <lamina/base/text.hpp>

#include <cstddef>

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

/// What no other way of computing helps against.
struct NoGpuLeft final : Error {
  using Error::Error;
};

/// Throws Error unless the call that was for `what` succeeded.
inline void ok(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const std::string why = text("CUDA: ", what, ": ", cudaGetErrorString(status));
  if (!ends_gpu(status)) throw Error(why);
  throw NoGpuLeft(why + ": the GPU was lost, or a kernel failed on it");
}

/// How much memory of the GPU that is chosen `what` takes, and how much there is.
inline std::string lacks_memory(const std::string& what, std::size_t bytes) {
  int device = 0;
  std::size_t free = 0, total = 0;
  ok(cudaGetDevice(&device), "ask which GPU is chosen");
  ok(cudaMemGetInfo(&free, &total), "ask for memory");
  return text("not enough memory of cuda:", device, ": ", what, " takes ", in_bytes(double(bytes)),
              ", and ", in_bytes(double(free)),
              " are free: a smaller batch or micro-batch may fit");
}

/// Throws Error, which says so, unless `what` got its `bytes` of the GPU's memory.
inline void ok_memory(cudaError_t status, const char* what, std::size_t bytes) {
  if (status == cudaErrorMemoryAllocation) throw Error(lacks_memory(what, bytes));
  ok(status, what);
}
/// Or of the host's, which pinned memory may run out of before it is full.
inline void ok_pinned(cudaError_t status, std::size_t bytes) {
  check(status != cudaErrorMemoryAllocation,
        "not enough memory of the host that can be pinned: ", in_bytes(double(bytes)),
        " for copies to or from a GPU");
  ok(status, "allocate pinned memory of the host");
}

}  // namespace lamina::cuda
