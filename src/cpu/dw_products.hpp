// The gradient of the weights of a convolution or a linear layer as a product of matrices, for
// processors that multiply bf16 (AVX512-BF16, or tiles: AMX). oneDNN 2.6 computes that of a
// convolution at half to nine tenths of what the processor can do, at a tenth to a third by tiles,
// and that of a linear layer in another layout than the weights have.
#pragma once

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/box.hpp>
#include <lamina/tensor/narrow.hpp>

#include <cstddef>
#include <cstdint>

namespace lamina::detail {

/// dw(k, c, i, j) = sum over n, h, w of dy(n, k, h, w) * x(n, c, h * stride + i - pad, ...): rows
/// are channels of dy, columns those of x for each tap of the window, and what is summed over are
/// the positions of y, in an order that does not depend on the number of threads. Where padding is
/// multiplied, too, infinities of dy beside it make NaN. dw lies in blocks
/// of sixteen channels of x by some of dy, those of x in pairs, and is padded with zeros.
class DwProducts {
 public:
  static constexpr const char* name = "lamina:products";
  static constexpr const char* name_by_tiles = "lamina:tiles";
  /// Whether the processor and this program can do it; and by tiles.
  static bool available();
  static bool tiles_available();

  /// For nChw16c images, padded with zeros, or by tiles for those that lie n-h-w-c, and an
  /// OIhw8i16o2i gradient, unless it is plain(). All are for the threads() of the kernels, or
  /// fewer.
  DwProducts(const ConvGeometry&, const Shape& x, bool tiles = false);
  /// For plain samples, and a gradient whose blocks have `out_block` channels of dy and `block` of
  /// x, a multiple of sixteen: AB8b64a2b, and AB16b64a2b by tiles.
  DwProducts(std::int64_t features, std::int64_t out_block, std::int64_t block, const Shape& x,
             bool tiles = false);

  /// Whether it is faster than oneDNN's: with few channels copies may take too long.
  bool pays() const { return pays_; }

  /// Whether dw lies k-h-w-c: where x has few channels.
  bool plain() const { return run_ > 0; }

  const char* how() const { return tiles_ ? name_by_tiles : name; }

  /// Bytes of memory that it takes.
  std::size_t scratch() const;

  /// `db`, the sums of dy, has its channels without padding; null without a bias. `scratch` starts
  /// on a line of the cache.
  void operator()(const BF16* x, const BF16* dy, float* dw, float* db, void* scratch) const;

 private:
  struct Task;
  struct Chunk;
  class Walk;

  /// How x or dy lies: where the next sample, the next sixteen channels and the next position
  /// begin, in elements, and how many channels may be read.
  struct Planes {
    std::ptrdiff_t sample, plane, position;
    std::int64_t channels;
  };

  /// The rows or columns of y at which this tap of the window lies inside of x.
  Part inside_rows(int tap) const;
  Part inside_columns(int tap) const;

  void divide();  // into tasks
  /// So many positions as are taken together: pairs, or what a tile has.
  int whole(int positions) const;
  std::size_t room() const;                                                    // of a thread
  std::size_t size() const;                                                    // of dw
  std::size_t share_size() const { return size() + std::size_t(rows_) * 16; }  // and of db
  void add_shares(const float* from, std::size_t n, float* to) const;

  ConvGeometry g_;
  Shape x_, y_;
  Planes of_x_, of_dy_;
  int x_blocks_, rows_, columns_;  // of dw, in blocks of sixteen channels
  int out_blocks_ = 1;             // of rows, that lie together in dw
  int task_rows_, task_columns_;   // of what a thread computes at a time
  int shares_ = 1;                 // of all positions, whose sums are added up in the end
  bool tiles_ = false;
  /// Elements of x that a row of a window has, one behind the other: where channels are few these
  /// are taken for them, and the rows for taps. Else 0.
  std::int64_t run_ = 0;
  bool tap_by_tap_ = false;  // each over the positions where it is inside, not over all of y
  int threads_;
  bool pays_ = true;
};

}  // namespace lamina::detail
