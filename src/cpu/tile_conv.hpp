// Convolution by tiles (AMX), on images that lie n-h-w-c: y, or the gradient of x. oneDNN 2.6
// computes these at a sixth to a third of what tiles multiply, least of it for small images and for
// gradients of x with a stride.
#pragma once

#include "cpu/dw_products.hpp"

#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/narrow.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lamina::detail {

/// What is done to a sum before it is stored.
struct TileEpilogue {
  bool add = false;  ///< what is there is added
  float slope = 1;   ///< by which what is negative then is multiplied
};

/// How weights lie: tiles of sixteen pairs of channels that are read by sixteen that are written.
/// All in elements.
struct TileWeights {
  std::int64_t pitch = 0;     ///< from a row of a tile to the next
  std::int64_t together = 1;  ///< tiles whose rows lie side by side, of other channels written
  std::int64_t group = 0;     ///< from as many channels to the next
  std::int64_t depth = 0;     ///< from 32 channels that are read to the next
  std::int64_t row = 0, column = 0;  ///< of the window
};

/// Sums over channels and taps, for each position of the images that are written. A tile has 32
/// channels of what is read, at sixteen positions that follow one another: windows wider than a
/// pixel are taken from a copy, a band of rows at a time, with zeros around them, in which
/// positions do so from one row to the next, too. These zeros are multiplied: a weight that is not
/// finite makes NaN also where its tap lies outside.
class TileConv {
 public:
  /// Whether it can be computed: channels come in whole tiles, and no window lies in padding alone.
  static bool takes(const ConvGeometry&, const Shape& x);

  /// y of x; and dx of dy.
  static TileConv forward(const ConvGeometry&, const Shape& x, const TileWeights&,
                          const TileEpilogue& = {});
  static TileConv gradient(const ConvGeometry&, const Shape& x, const TileWeights&);

  static constexpr const char* name = DwProducts::name_by_tiles;

  /// Whether it is faster than oneDNN's, by measurement: whose forward is slow for some small
  /// images, and whose gradient for any of them, for windows of a pixel and with a stride.
  bool pays() const { return pays_; }

  /// Bytes of memory that it takes.
  std::size_t scratch() const;

  /// From x, w and `bias`, null without one, to y; or from dy, w and null to dx. `scratch` starts
  /// on a line of the cache. For the threads() of its construction, or fewer.
  void operator()(const BF16* from, const BF16* w, const BF16* bias, BF16* to, void* scratch) const;

 private:
  struct Worker;
  /// Where a tile is read from a position on, and which tile of weights it is multiplied by.
  struct Step {
    std::int64_t from, w;
  };
  /// Positions that take the same taps: all, but of a gradient with a stride those of one phase.
  struct Phase {
    std::vector<Step> steps;
    /// In what is written, from a band's first row on, of each row of each tile of an image.
    std::vector<std::int32_t> positions;
  };
  /// Rows of `images` images.
  struct Band {
    std::int64_t image, images, row, rows;
  };

  /// `g` is forward's.
  TileConv(const ConvGeometry& g, const Shape& from, const Shape& to, const TileWeights&);
  void divide(std::int64_t taps);
  void add_phase(const std::vector<Step>&, Pair at);
  std::int64_t bands() const;
  Band band(std::int64_t i) const;
  std::int64_t copied_rows() const { return rows_ + halo_.h; }
  std::int64_t tiles_of(std::int64_t rows) const;  // of an image
  std::int64_t plane() const;                      // of what is copied, in elements
  std::size_t room() const;                        // of a thread, in elements

  Shape from_, to_;  // where direct one image, all of whose positions are in one column
  TileWeights w_;
  TileEpilogue epilogue_;
  bool direct_;                         // nothing is copied
  Pair read_ = 1, write_ = 1;           // strides
  Pair grid_, halo_;                    // rows and columns of positions, and how many more are read
  Pair lead_ = 0;                       // zeros before the first row and column
  std::int64_t pitch_ = 0;              // from a row of positions to the next one
  std::int64_t shared_ = 0;             // zeros behind a row that are those before the next one
  std::int64_t rows_ = 1, images_ = 1;  // of a band
  std::int64_t blocks_ = 1, chunk_ = 1;  // of a task, and before the band is read again
  std::int64_t tiles_ = 0;               // of an image's rows
  int threads_;
  std::vector<Phase> phases_;
  std::vector<bool> planes_ = {true};  // which, of each row and column of a stride, are read
  bool pays_ = false;
};

}  // namespace lamina::detail
