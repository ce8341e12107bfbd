// Convolution of 3x3 windows by Winograd's minimal filtering (Lavin and Gray, 2016), F(4x4, 3x3)
// and F(2x2, 3x3), for AVX2, on nChw8c images and OIhw8i8o weights. oneDNN has it for AVX-512 only.
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
  /// Whether a convolution can be done so.
  static bool possible(const ConvGeometry&);
  /// And takes less time than it does directly.
  static bool pays(const ConvGeometry&, const Shape& x);

  /// `tile`: 4 or, for forward alone, 2, for which prepared weights take less memory.
  Winograd(const ConvGeometry&, const Shape& x, int tile = 4);

  /// Bytes of scratch memory that forward() and the gradients take.
  std::size_t scratch() const { return scratch(true); }

  /// What is done with a result r before it is written: y = r + b + y, and slope times that where
  /// it is negative.
  struct Ending {
    const float* b = nullptr;  ///< null without a bias
    bool add = false;          ///< whether y has what is added
    float slope = 1;
  };

  void forward(const float* x, const float* w, const Ending& e, float* y, float* scratch) const {
    filter(x, {w, false}, e, y, false, scratch);
  }
  void input_grad(const float* w, const float* dy, float* dx, float* scratch) const {
    filter(dy, {w, false}, {}, dx, true, scratch);
  }
  /// `db` is null without a bias.
  void weight_grad(const float* x, const float* dy, float* dw, float* db, float* scratch) const;

  /// Weights that stay can be transformed once, into so many floats, for `forward_prepared()`.
  std::int64_t prepared_size() const;
  void prepare(const float* w, float* prepared) const;
  void forward_prepared(const float* x, const float* prepared, const Ending& e, float* y,
                        float* scratch) const {
    filter(x, {prepared, true}, e, y, false, scratch);
  }
  /// Bytes of scratch memory that takes.
  std::size_t prepared_scratch() const { return scratch(false); }

 private:
  /// An image: blocks of eight channels, height and width.
  struct Image {
    std::int64_t blocks, h, w;
    std::int64_t channels() const { return 8 * blocks; }
  };
  struct Tiles;
  struct Weights {
    const float* data;
    bool prepared;
  };

  int points() const;
  std::size_t scratch(bool weights) const;
  void filter(const float* from, const Weights&, const Ending&, float* to, bool turned,
              float* scratch) const;
  template <class F>
  void filter_by(const float* from, const Weights&, const Ending&, float* to, bool turned,
                 float* scratch) const;

  std::int64_t n_, top_, left_, channels_;
  int tile_;
  Image x_, y_;
};

}  // namespace lamina::detail
