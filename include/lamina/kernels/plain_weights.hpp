// Weights in plain layout, whatever a kernel wants: for ranks that share weights, but whose kernels
// want them differently.
#pragma once

#include <lamina/kernels/backend.hpp>

namespace lamina {

/// `kernel` where it takes plain weights; else one around it that reorders them for it before each
/// pass, and their gradient, which is of type `gradients`, behind it.
std::unique_ptr<WeightedKernel> with_plain_weights(const Backend& backend,
                                                   std::unique_ptr<WeightedKernel> kernel,
                                                   DType gradients);

}  // namespace lamina
