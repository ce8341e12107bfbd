// Batch normalisation on a GPU, in the steps of NormKernel (lamina/kernels/backend.hpp), between
// which ranks may communicate.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::cuda {

/// x and all that is like it are [rows][channels], the rows being all positions of all samples.
/// Sums, means and 1/standard deviations are f64; weights, biases and running averages are P: f64
/// for elements of f64, f32 for all others. What is null is absent.
struct BatchNorm {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  int channels = 0;
  double slope = 1;  ///< of the activation below zero; 1 without one
};

/// Bytes that statistics and gradients want to write to beside their results.
std::size_t norm_workspace(const BatchNorm&);

/// sums[2][channels]: sum(x), sum(x^2).
cudaError_t norm_statistics(cudaStream_t, const BatchNorm&, const void* x, double* sums,
                            void* workspace);
/// mean and inv_std from sums over `count` rows; moves the running averages.
cudaError_t norm_finish(cudaStream_t, const BatchNorm&, const double* sums, double count,
                        double epsilon, double momentum, double* mean, double* inv_std,
                        void* running_mean, void* running_var);
/// sums[2][channels]: the running averages.
cudaError_t norm_running(cudaStream_t, const BatchNorm&, const void* running_mean,
                         const void* running_var, double* sums);
/// mean and inv_std from sums of `variants` running averages.
cudaError_t norm_from_running(cudaStream_t, const BatchNorm&, const double* sums, int variants,
                              double epsilon, double* mean, double* inv_std);
/// Bytes of `signs`: whether the activation let an element pass as it was, a bit for each in a byte
/// for as many as a thread loads at once. Where channels fill such packs, elements have to begin
/// where a pack may.
std::size_t norm_signs(const BatchNorm&);

/// y = activation((x - mean) inv_std w + b + added), and its signs.
cudaError_t norm_normalize(cudaStream_t, const BatchNorm&, const void* x, const double* mean,
                           const double* inv_std, const void* w, const void* b, const void* added,
                           void* y, void* signs);
/// sums[2][channels]: sum(g), sum(g xhat), with g = dy before the activation, where there are
/// signs; db and dw are the same, of dtype `gradients`; dadded = g. Where `more` is there, dy is
/// dy + more, rounded.
cudaError_t norm_gradients(cudaStream_t, const BatchNorm&, const void* x, const double* mean,
                           const double* inv_std, const void* dy, const void* signs, double* sums,
                           DType gradients, void* dw, void* db, void* dadded, void* workspace,
                           const void* more = nullptr);
/// dx = w inv_std (g - sum(g)/count - xhat sum(g xhat)/count).
cudaError_t norm_input_grad(cudaStream_t, const BatchNorm&, const void* x, const double* mean,
                            const double* inv_std, const void* w, const void* dy, const void* signs,
                            const double* sums, double count, void* dx);

}  // namespace lamina::cuda
