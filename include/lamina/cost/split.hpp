// Split: how many ways each axis of a layer is cut, as pure arithmetic.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/box.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

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

/// Where a rank stands in a split: its number along each axis.
struct Place {
  int batch = 0, channel = 0, input = 0, height = 0, width = 0;
  constexpr bool operator==(const Place&) const = default;
};

/// Ways per axis: samples, output channels, input channels, rows and columns. The ranks of a layer
/// are the first ways() ones. Their numbers count the input channels first, then output channels,
/// columns, rows and samples: ranks that share the most are neighbours.
struct Split {
  int batch = 1, channel = 1, input = 1, height = 1, width = 1;

  /// The product of all, or the largest int where that would be more.
  constexpr int ways() const {
    std::int64_t all = 1;
    for (const int parts : {batch, channel, input, height, width})
      all = std::min<std::int64_t>(all * parts, std::numeric_limits<int>::max());
    return int(all);
  }
  constexpr bool operator==(const Split&) const = default;

  /// Of a rank below ways().
  constexpr Place place(int rank) const {
    Place p;
    p.input = rank % input, rank /= input;
    p.channel = rank % channel, rank /= channel;
    p.width = rank % width, rank /= width;
    p.height = rank % height, rank /= height;
    p.batch = rank;
    return p;
  }
  /// The axes that are cut.
  constexpr Axis axes() const {
    const auto if_cut = [](int ways, Axis axis) { return ways > 1 ? axis : Axis::none; };
    return if_cut(batch, Axis::batch) | if_cut(channel, Axis::channel) |
           if_cut(input, Axis::input) | if_cut(height, Axis::height) | if_cut(width, Axis::width);
  }
  constexpr int ways(Axis axes) const {
    return (contains(axes, Axis::batch) ? batch : 1) *
           (contains(axes, Axis::channel) ? channel : 1) *
           (contains(axes, Axis::input) ? input : 1) * (contains(axes, Axis::height) ? height : 1) *
           (contains(axes, Axis::width) ? width : 1);
  }
  /// A number that is the same for ranks which stand alike along `axes`, and for no others.
  constexpr int number(const Place& p, Axis axes) const {
    int n = 0;
    if (contains(axes, Axis::batch)) n = n * batch + p.batch;
    if (contains(axes, Axis::height)) n = n * height + p.height;
    if (contains(axes, Axis::width)) n = n * width + p.width;
    if (contains(axes, Axis::channel)) n = n * channel + p.channel;
    if (contains(axes, Axis::input)) n = n * input + p.input;
    return n;
  }

  /// The largest part of an output of this shape that a rank holds.
  constexpr Shape of_output(Shape y) const { return cut(y, channel); }
  /// The largest part of an input that a rank holds, halo apart.
  constexpr Shape of_input(Shape x) const { return cut(x, input); }

  /// "batch:2,channel:2", or "none".
  std::string text() const {
    std::string to;
    const auto say = [&](const char* axis, int ways) {
      if (ways > 1) to += lamina::text(to.empty() ? "" : ",", axis, ':', ways);
    };
    say("batch", batch), say("channel", channel), say("input", input);
    say("height", height), say("width", width);
    return to.empty() ? "none" : to;
  }

 private:
  constexpr Shape cut(Shape x, int channels) const {
    return {part(x.n, batch, 0).size, part(x.c, channels, 0).size, part(x.h, height, 0).size,
            part(x.w, width, 0).size};
  }
};

}  // namespace lamina
