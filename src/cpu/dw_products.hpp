// The gradient of the weights of a convolution or a linear layer as a product of matrices, for
// processors that multiply bf16 (AVX512-BF16). oneDNN 2.6 computes that of a convolution at half to
// nine tenths of what the processor can do, and that of a linear layer in another layout than the
// weights have.
#pragma once

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/box.hpp>
#include <lamina/tensor/narrow.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::detail {

/// dw(k, c, i, j) = sum over n, h, w of dy(n, k, h, w) * x(n, c, h * stride + i - pad, ...): rows
/// are channels of dy, columns those of x for each tap of the window, and what is summed over are
/// the positions of y, in an order that does not depend on the number of threads. dw lies in blocks
/// of sixteen channels of x by some of dy, those of x in pairs, and is padded with zeros.
class DwProducts {
 public:
  static constexpr const char* name = "lamina:products";
  /// Whether the processor and this program can do it.
  static bool available();

  /// For nChw16c images, padded with zeros, and an OIhw8i16o2i gradient. Both are for the threads()
  /// of the kernels, or fewer.
  DwProducts(const ConvGeometry&, const Shape& x);
  /// For plain samples, and a gradient whose blocks have `out_block` channels of dy: AB8b64a2b.
  DwProducts(std::int64_t features, std::int64_t out_block, const Shape& x);

  /// Whether it is faster than oneDNN's: with few channels the copies take too long.
  bool pays() const { return pays_; }

  /// Bytes of memory that it takes.
  std::size_t scratch() const { return std::size_t(threads_) * room(); }

  /// `db`, the sums of dy, has its channels without padding; null without a bias. `scratch` starts
  /// on a line of the cache.
  void operator()(const BF16* x, const BF16* dy, float* dw, float* db, void* scratch) const;

 private:
  struct Task;
  struct Chunk;
  class Walk;

  /// How x or dy lies: where the next sample and the next sixteen channels begin, in elements, and
  /// how many channels may be read.
  struct Planes {
    std::ptrdiff_t sample, plane;
    std::int64_t channels;
  };

  /// The rows or columns of y at which this tap of the window lies inside of x.
  Part inside_rows(int tap) const;
  Part inside_columns(int tap) const;

  void divide();             // into tasks
  std::size_t room() const;  // of a thread

  ConvGeometry g_;
  Shape x_, y_;
  Planes of_x_, of_dy_;
  int x_blocks_, rows_, columns_;  // of dw, in blocks of sixteen channels
  int out_blocks_ = 1;             // of rows, that lie together in dw
  int task_rows_, task_columns_;   // of what a thread computes at a time
  bool tap_by_tap_ = false;        // each over the positions where it is inside, not over all of y
  int threads_;
  bool pays_ = true;
};

}  // namespace lamina::detail
