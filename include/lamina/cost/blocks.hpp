// Blocks: which block of a value each rank holds, and what must move from one such arrangement to
// another. Pure arithmetic.
#pragma once

#include <lamina/cost/split.hpp>

#include <algorithm>
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

/// The ranks that hold copies of one block.
struct Copies {
  Box box;
  std::vector<int> ranks;  ///< ascending

  /// Which of them gives it to rank `to`: that itself if it is one of them, else the nearest.
  int nearest(int to) const {
    if (ranks.size() == 1) return ranks[0];
    const auto right = std::lower_bound(ranks.begin(), ranks.end(), to);
    if (right == ranks.begin()) return *right;
    const int left = *(right - 1);
    return right != ranks.end() && *right - to <= to - left ? *right : left;
  }
};

/// The different blocks of an arrangement, in the order of their numbers.
std::vector<Copies> copies_of(const Blocks& blocks);

/// work(held, wanted, box) for each pair of blocks of two arrangements that have `box` in common,
/// of each one that is wanted in the order of those that are held. What a rank wants becomes the
/// sum of these, each from the nearest copy.
template <class Work>
void each_overlap(const std::vector<Copies>& held, const std::vector<Copies>& wanted, Work&& work) {
  // Most arrangements go through the samples in order: what lies before and behind is passed over.
  const auto begin = [](const Copies& c) { return c.box.n.begin; };
  const auto end = [](const Copies& c) { return c.box.n.end(); };
  const bool ordered =
      std::ranges::is_sorted(held, {}, begin) && std::ranges::is_sorted(held, {}, end);
  for (const Copies& want : wanted) {
    auto have = ordered ? std::ranges::upper_bound(held, want.box.n.begin, {}, end) : held.begin();
    for (; have != held.end() && !(ordered && begin(*have) >= want.box.n.end()); ++have)
      if (const Box box = common(have->box, want.box); !box.empty()) work(*have, want, box);
  }
}

}  // namespace lamina
