// Split: how many ways each axis of a layer is cut, as pure arithmetic.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/box.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lamina {

enum class Axis { none = 0, batch = 1, channel = 2, input = 4, height = 8, width = 16 };
/// A set of axes.
constexpr Axis operator|(Axis a, Axis b) { return Axis(int(a) | int(b)); }
constexpr Axis operator&(Axis a, Axis b) { return Axis(int(a) & int(b)); }
constexpr bool contains(Axis set, Axis axis) { return (int(set) & int(axis)) != 0; }

/// Part `index` of `ways` balanced parts of `extent`: sizes differ by at most one, larger ones
/// first.
constexpr Part part(std::int64_t extent, std::int64_t ways, std::int64_t index) {
  const std::int64_t size = extent / ways, rest = extent % ways;
  return {index * size + std::min(index, rest), size + (index < rest ? 1 : 0)};
}

/// How the parts of an axis are sized: in proportion to these numbers, each at least 1. Empty: all
/// parts alike.
using Shares = std::vector<int>;

/// Part `index` of `extent` by such shares: {3, 1} of 8 are 6 and 2. Ends of parts are those in
/// proportion, rounded to the nearest; but no part is empty where there is one element for each.
inline Part part(std::int64_t extent, const Shares& shares, int index) {
  const auto parts = std::int64_t(shares.size());
  std::int64_t all = 0, before = 0, begin = 0, end = 0;
  for (const int share : shares) all += share;
  for (std::int64_t i = 0; i <= index; ++i) {
    before += shares[std::size_t(i)];
    begin = end;
    const std::int64_t least = std::min(begin + 1, extent), most = extent - (parts - 1 - i);
    end = std::clamp((2 * extent * before + all) / (2 * all), least, std::max(least, most));
  }
  return {begin, end - begin};
}

/// Where a rank stands in a split: its number along each axis.
struct Place {
  int batch = 0, channel = 0, input = 0, height = 0, width = 0;
  constexpr bool operator==(const Place&) const = default;
};

/// Ways per axis: samples, output channels, input channels, rows and columns. The ranks of a layer
/// are the first ways() ones. Their numbers count the input channels first, then output channels,
/// columns, rows and samples: ranks that share the most are neighbours.
///
/// Parts are alike unless their shares say otherwise: {.batch = 2, .shares = {.batch = {3, 1}}}.
/// Which part a rank has of a value, Blocks say; who asks here asks part().
struct Split {
  int batch = 1, channel = 1, input = 1, height = 1, width = 1;
  /// By axis, as many as it has ways; none where its parts are alike.
  struct Uneven {
    Shares batch = {}, channel = {}, input = {}, height = {}, width = {};
    bool operator==(const Uneven&) const = default;
  } shares = {};

  /// The product of all, or the largest int where that would be more.
  int ways() const {
    std::int64_t all = 1;
    for (const int parts : {batch, channel, input, height, width})
      all = std::min<std::int64_t>(all * parts, std::numeric_limits<int>::max());
    return int(all);
  }
  bool operator==(const Split&) const = default;

  /// Part `index` of `extent` along one axis.
  Part part(Axis axis, std::int64_t extent, int index) const {
    const Shares& uneven = shares_of(axis);
    if (!uneven.empty()) return lamina::part(extent, uneven, index);
    return lamina::part(extent, ways(axis), index);
  }
  /// Part along one axis of a rank at `place`.
  Part part(Axis axis, std::int64_t extent, const Place& place) const {
    return part(axis, extent, number(place, axis));
  }
  /// The largest and the smallest part of `extent` along one axis.
  std::int64_t largest(Axis axis, std::int64_t extent) const {
    std::int64_t most = 0;
    for (int i = 0; i < ways(axis); ++i) most = std::max(most, part(axis, extent, i).size);
    return most;
  }
  std::int64_t smallest(Axis axis, std::int64_t extent) const {
    std::int64_t least = extent;
    for (int i = 0; i < ways(axis); ++i) least = std::min(least, part(axis, extent, i).size);
    return least;
  }
  /// Of one axis.
  const Shares& shares_of(Axis axis) const {
    return axis == Axis::batch     ? shares.batch
           : axis == Axis::channel ? shares.channel
           : axis == Axis::input   ? shares.input
           : axis == Axis::height  ? shares.height
                                   : shares.width;
  }

  /// Of a rank below ways().
  Place place(int rank) const {
    Place p;
    p.input = rank % input, rank /= input;
    p.channel = rank % channel, rank /= channel;
    p.width = rank % width, rank /= width;
    p.height = rank % height, rank /= height;
    p.batch = rank;
    return p;
  }
  /// The rank at that place.
  int rank(const Place& p) const {
    return (((p.batch * height + p.height) * width + p.width) * channel + p.channel) * input +
           p.input;
  }
  /// The axes that are cut.
  Axis axes() const {
    const auto if_cut = [](int ways, Axis axis) { return ways > 1 ? axis : Axis::none; };
    return if_cut(batch, Axis::batch) | if_cut(channel, Axis::channel) |
           if_cut(input, Axis::input) | if_cut(height, Axis::height) | if_cut(width, Axis::width);
  }
  int ways(Axis axes) const {
    return (contains(axes, Axis::batch) ? batch : 1) *
           (contains(axes, Axis::channel) ? channel : 1) *
           (contains(axes, Axis::input) ? input : 1) * (contains(axes, Axis::height) ? height : 1) *
           (contains(axes, Axis::width) ? width : 1);
  }
  /// A number that is the same for ranks which stand alike along `axes`, and for no others.
  int number(const Place& p, Axis axes) const {
    int n = 0;
    if (contains(axes, Axis::batch)) n = n * batch + p.batch;
    if (contains(axes, Axis::height)) n = n * height + p.height;
    if (contains(axes, Axis::width)) n = n * width + p.width;
    if (contains(axes, Axis::channel)) n = n * channel + p.channel;
    if (contains(axes, Axis::input)) n = n * input + p.input;
    return n;
  }

  /// The largest part of an output of this shape that a rank holds.
  Shape of_output(Shape y) const { return cut(y, Axis::channel); }
  /// The largest part of an input that a rank holds, halo apart.
  Shape of_input(Shape x) const { return cut(x, Axis::input); }

  /// "batch:2,channel:3:1", or "none".
  std::string text() const {
    std::string to;
    const auto say = [&](const char* name, int ways, const Shares& uneven) {
      if (ways <= 1 && uneven.empty()) return;
      to += lamina::text(to.empty() ? "" : ",", name);
      if (uneven.empty()) to += lamina::text(':', ways);
      for (const int share : uneven) to += lamina::text(':', share);
    };
    say("batch", batch, shares.batch), say("channel", channel, shares.channel);
    say("input", input, shares.input), say("height", height, shares.height);
    say("width", width, shares.width);
    return to.empty() ? "none" : to;
  }

 private:
  Shape cut(const Shape& x, Axis channels) const {
    return {largest(Axis::batch, x.n), largest(channels, x.c), largest(Axis::height, x.h),
            largest(Axis::width, x.w)};
  }
};

}  // namespace lamina
