// What NVIDIA's libraries compute: convolutions and products of matrices. A narrow seam, so that
// all above it can be tested where these libraries are not.
#pragma once

#include "cuda/memory.hpp"

#include <lamina/kernels/backend.hpp>
#include <lamina/kernels/choice.hpp>

#include <memory>
#include <string>

namespace lamina::cuda {

// Kernels want their operands n-h-w-c (nhwc()), weights included: {k, c/groups, r, s} as k-r-s-c.
class Libraries {
 public:
  virtual ~Libraries() = default;
  /// Names and versions.
  virtual std::string names() const = 0;
  /// See Backend::fuses().
  virtual bool fuses(Fusible, const Epilogue&) const = 0;
  virtual std::unique_ptr<WeightedKernel> conv(const ConvGeometry&, const Form& x,
                                               const Epilogue&) const = 0;
  virtual std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                                 const Epilogue&) const = 0;
};

/// Throws Error where they are not installed.
std::unique_ptr<Libraries> make_libraries(std::shared_ptr<Memory>, Choice);

}  // namespace lamina::cuda
