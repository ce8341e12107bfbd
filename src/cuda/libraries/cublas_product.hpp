// CublasProduct: a product of matrices by cuBLAS, and what may come behind it.
#pragma once

#include "cuda/libraries/cublas.hpp"
#include "cuda/libraries/problem.hpp"

namespace lamina::cuda {

/// y = a b, of rows one after the other: a is {rows, inner}, b {inner, columns}.
struct Matrices {
  std::int64_t rows = 0, inner = 0, columns = 0;
  bool a_transposed = false, b_transposed = false;  ///< so it lies in memory
  DType elements = DType::f32, y = DType::f32;      ///< of a, b and the bias, and of y
  bool bias = false;                                ///< one is added to each column
  bool rectify = false;                             ///< by ReLU, behind it
};

/// Its operands are a, b, the bias if there is one, and y, all at multiples of 16 bytes. Sums are
/// of type wide(elements), also those of parts that the GPU sums up by themselves.
class CublasProduct final : public Problem {
 public:
  explicit CublasProduct(const Matrices& m) : matrices_(m) {}

  /// None where there is no cuBLAS.
  std::vector<Way> ways(const LibrariesOnGpu& on) const override;

 private:
  Matrices matrices_;
};

}  // namespace lamina::cuda
