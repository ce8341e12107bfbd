// What NVIDIA's libraries compute: convolutions, products of matrices, windows. A narrow seam, so
// that all above it can be tested where these libraries find no GPU.
#pragma once

#include "cuda/memory.hpp"

#include <lamina/kernels/backend.hpp>

#include <memory>
#include <string>

namespace lamina::cuda {

/// Names and versions.
std::string library_names();
/// See Backend::fuses().
bool library_fuses(Fusible, const Epilogue&);

// Kernels want their operands n-h-w-c (nhwc()), weights included: {k, c/groups, r, s} as k-r-s-c.
std::unique_ptr<WeightedKernel> library_conv(const std::shared_ptr<Memory>&, const ConvGeometry&,
                                             const Form& x, const Epilogue&);
std::unique_ptr<WeightedKernel> library_linear(const std::shared_ptr<Memory>&,
                                               std::int64_t features, bool bias, const Form& x,
                                               const Epilogue&);
std::unique_ptr<UnaryKernel> library_pool(const std::shared_ptr<Memory>&, const PoolGeometry&,
                                          const Form& x);
std::unique_ptr<UnaryKernel> library_lrn(const std::shared_ptr<Memory>&, const LrnGeometry&,
                                         const Form& x);
/// Over the channels.
std::unique_ptr<UnaryKernel> library_softmax(const std::shared_ptr<Memory>&, const Form& x);

}  // namespace lamina::cuda
