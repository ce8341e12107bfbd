// The optimizer's update of parameters on a GPU, and sums of squares.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/step_values.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::cuda {

/// UpdateRule and UpdateStep (lamina/kernels/), whose views are pointers here; any may be null.
struct Update {
  enum class Kind { sgd, adam, adamw };
  Kind kind = Kind::sgd;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double rate = 0, weight_decay = 0, grad_scale = 1, step = 1;
  const UpdateValues* values = nullptr;
  const double* found = nullptr;
  double samples = 0;
  const double* squares = nullptr;
  int square_count = 0;
  double clip_norm = 0;
  const double *value_square = nullptr, *grad_square = nullptr;
  double trust = 0;
};

/// w and the states, which are null where the rule has none, are of `dtype`, f32 or f64; dw is of
/// `gradients`. Computed in f64.
cudaError_t update(cudaStream_t, const Update&, DType dtype, std::int64_t count, void* w,
                   DType gradients, const void* dw, void* first, void* second);

/// Bytes that squared_norm wants to write to beside its result.
constexpr std::size_t square_workspace = std::size_t(most_blocks) * sizeof(double);
/// sum = that of the squares of all elements, added up in an order that depends on their number
/// alone.
cudaError_t squared_norm(cudaStream_t, DType, std::int64_t count, const void* x, double* sum,
                         void* workspace);

}  // namespace lamina::cuda
