// The gradient of a convolution's weights as a product of matrices, for processors that multiply
// bf16 (AVX512-BF16), on nChw16c images in bf16 and OIhw8i16o2i gradients in f32. oneDNN 2.6 does
// that at half to nine tenths of what the processor can do.
#pragma once

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/narrow.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::detail {

/// dw(k, c, i, j) = sum over n, h, w of dy(n, k, h, w) * x(n, c, h * stride + i - pad, ...): rows
/// are channels of dy, columns those of x for each tap of the window, and what is summed over are
/// the positions of y. All operands are padded with zeros to whole blocks of sixteen channels, and
/// so is dw. Results do not depend on the number of threads.
class DwProducts {
 public:
  /// Whether the processor and this program can do it.
  static bool available();

  /// For the threads() of the kernels, or fewer.
  DwProducts(const ConvGeometry&, const Shape& x);

  /// Bytes of memory that it takes.
  std::size_t scratch() const { return std::size_t(threads_) * room(); }

  /// `db`, the sums of dy, has its channels without padding; null without a bias. `scratch` starts
  /// on a line of the cache.
  void operator()(const BF16* x, const BF16* dy, float* dw, float* db, void* scratch) const;

 private:
  struct Task;
  struct Position;
  class Walk;

  std::size_t room() const;  // of a thread

  ConvGeometry g_;
  Shape x_, y_;
  int x_blocks_, rows_, columns_;  // of dw, in blocks
  int task_rows_, task_columns_;   // of what a thread computes at a time
  int threads_;
};

}  // namespace lamina::detail
