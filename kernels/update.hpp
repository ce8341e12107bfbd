// The optimizer's update of parameters on a GPU, and sums of squares: of all tensors of a list by
// one launch. The list lies in the memory of the GPU, and so do the chunks into which it is cut,
// which blocks take one after the other.
#pragma once

#include "launch.hpp"

#include <lamina/kernels/step_values.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

/// Elements of a run that a block takes at once.
constexpr std::int64_t chunk_elements = 4096;
struct Chunk {
  std::int32_t run, number;  ///< of that run's chunks
};

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
  const LossScale* loss_scale = nullptr;
};

/// UpdatePart: elements in a row. The states and `rounded` are null where there are none.
struct UpdateRun {
  void* w = nullptr;
  const void* dw = nullptr;
  void *first = nullptr, *second = nullptr, *rounded = nullptr;
  std::int64_t count = 0;
  bool packed = false;  ///< all begin where 16 bytes may, and `count` is a multiple of four
  double rate = 1, weight_decay = 0;
  const double *value_square = nullptr, *grad_square = nullptr;
  double trust = 0;
};

/// The types of all runs: w and the states are f32 or f64.
struct UpdateTypes {
  DType w = DType::f32, dw = DType::f32, rounded = DType::f32;
};

/// Computed in f64.
cudaError_t update(cudaStream_t, const Update&, const UpdateTypes&, const UpdateRun* runs,
                   const Chunk* chunks, std::int64_t chunk_count);

/// Elements in a row, and where the sum of their squares goes.
struct SquaresRun {
  const void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t count = 0;
  double* sum = nullptr;
  std::int64_t first_chunk = 0;  ///< among all chunks, where those of a run follow one another
};

/// The sums are added up in an order that depends on the number of elements alone. `partials`: room
/// for a number for each chunk.
cudaError_t square(cudaStream_t, const SquaresRun* runs, std::int64_t run_count,
                   const Chunk* chunks, std::int64_t chunk_count, double* partials);

/// See Backend::adjust_loss_scale().
cudaError_t adjust_loss_scale(cudaStream_t, const LossScaling&, const double* squares,
                              int square_count, LossScale* scale);

}  // namespace lamina::cuda
