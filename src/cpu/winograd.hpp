// Convolution of 3x3 windows by Winograd's minimal filtering (Lavin and Gray, 2016), F(4x4, 3x3),
// for AVX2, on nChw8c images and OIhw8i8o weights. oneDNN has it for AVX-512 only.
#pragma once

#include <lamina/kernels/geometry.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::detail {

/// All operands are padded with zeros to whole blocks of eight channels, and so are results, which
/// do not depend on the number of threads.
class Winograd {
 public:
  /// Whether the processor and this program can do it.
  static bool available();
  /// Whether a convolution can be done so, and takes less time than it does directly.
  static bool pays(const ConvGeometry&, const Shape& x);

  Winograd(const ConvGeometry&, const Shape& x);

  /// Bytes of scratch memory that each of the three takes.
  std::size_t scratch() const;

  /// `b` and `db` are null without a bias.
  void forward(const float* x, const float* w, const float* b, float* y, float* scratch) const {
    filter(x, w, b, y, false, scratch);
  }
  void input_grad(const float* w, const float* dy, float* dx, float* scratch) const {
    filter(dy, w, nullptr, dx, true, scratch);
  }
  void weight_grad(const float* x, const float* dy, float* dw, float* db, float* scratch) const;

 private:
  /// An image: blocks of eight channels, height and width.
  struct Image {
    std::int64_t blocks, h, w;
    std::int64_t channels() const { return 8 * blocks; }
  };
  struct Tiles;

  void filter(const float* from, const float* w, const float* b, float* to, bool turned,
              float* scratch) const;

  std::int64_t n_, top_, left_, channels_;
  Image x_, y_;
};

}  // namespace lamina::detail
