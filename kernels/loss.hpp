// Softmax and cross-entropy on a GPU, in the steps of LossKernel (lamina/kernels/backend.hpp),
// between which ranks may communicate.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/step_values.hpp>

#include <cstdint>

namespace lamina::cuda {

/// Logits x[rows][part] of some of the classes; probabilities are f64 for logits of f64, f32 for
/// all others. The operands are those of LossKernel, but that nothing can be thrown here: a label
/// that is no class makes the loss NaN.
struct Loss {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t part = 0, classes = 0, first = 0;  ///< `part` of all classes, from `first` on
  double smoothing = 0;
};

cudaError_t loss_largest(cudaStream_t, const Loss&, const void* x, const std::int32_t* labels,
                         const StepValues* now, double* largest);
cudaError_t loss_sums(cudaStream_t, const Loss&, const void* x, const std::int32_t* labels,
                      const double* largest, void* p, double* sums);
cudaError_t loss_finish(cudaStream_t, const Loss&, const std::int32_t* labels,
                        const double* largest, const double* sums, void* p, double* totals);
cudaError_t loss_mean(cudaStream_t, double* totals, double* rows);
/// See Backend::add_found().
cudaError_t loss_add_found(cudaStream_t, const double* found, bool first, double* totals);
cudaError_t loss_input_grad(cudaStream_t, const Loss&, const void* p, const std::int32_t* labels,
                            const double* rows, double samples, void* dx, const double* scale);

}  // namespace lamina::cuda
