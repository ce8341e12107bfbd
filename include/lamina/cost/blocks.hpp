// Blocks: which block of a value each rank holds, and what must move from one such arrangement to
// another. Pure arithmetic.
#pragma once

#include <lamina/cost/split.hpp>

#include <vector>

namespace lamina {

/// Which block of a value each rank holds. Ranks with one number hold copies of the same block; a
/// gradient is complete on each of them. Blocks with different numbers may overlap (halos): what
/// they say of the gradient of a common element adds up. A rank that holds nothing has number -1
/// and the box {}: it takes no part in the layer, or the layer takes none of this value there.
struct Blocks {
  Shape whole;
  std::vector<Box> box;     ///< by rank
  std::vector<int> number;  ///< by rank

  /// Of a value whose axes are cut as `axes` of the split say, over `ranks` ranks: channels by
  /// `channel` or by `input`, whichever is among them; ranks beyond split.ways() hold nothing.
  static Blocks of(const Shape& whole, const Split& split, Axis axes, int ranks);

  /// Elements of the largest box.
  std::int64_t largest() const;
  /// What each rank holds of these channels, as blocks of a value that has no others.
  Blocks of_channels(Part channels) const;
  /// What some of the ranks hold, in that order.
  Blocks among(const std::vector<int>& members) const;

  int ranks() const { return int(box.size()); }
  /// Whether every rank holds the same, so that nothing need move.
  bool same(const Blocks& other) const;

 private:
  /// Copies in one are copies in the other.
  bool number_alike(const Blocks& other) const;
};

/// The outputs `y` of a window that takes positions begin*stride - before + k*dilation, k < window,
/// of an axis of `extent`: which run of the axis they read, and the padding that is left there.
struct Reach {
  Part rows;
  std::int64_t before = 0, after = 0;
};
constexpr Reach reach(Part y, std::int64_t window, std::int64_t stride, std::int64_t dilation,
                      std::int64_t before, std::int64_t extent) {
  const std::int64_t begin = y.begin * stride - before;
  const std::int64_t end = (y.end() - 1) * stride - before + (window - 1) * dilation + 1;
  const std::int64_t first = std::clamp<std::int64_t>(begin, 0, extent);
  const std::int64_t last = std::clamp<std::int64_t>(end, first, extent);
  return {{first, last - first},
          std::max<std::int64_t>(0, first - begin),
          std::max<std::int64_t>(0, end - last)};
}

/// What one rank sends or gets.
struct Move {
  int peer = 0;
  Box box;
};

/// What rank `to` needs so that its block of `wanted` becomes the sum of all different blocks of
/// `held` that overlap it: in the order of their numbers, each from one of its copies, the rank's
/// own if it has one, else the nearest.
std::vector<Move> moves_to(const Blocks& held, const Blocks& wanted, int to);

}  // namespace lamina
