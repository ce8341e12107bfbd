// Split: how many ways each axis of a layer is cut, as pure arithmetic.
#pragma once

#include <lamina/tensor/shape.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace lamina {

enum class Axis { batch = 1, channel = 2, input = 4, height = 8, width = 16 };
/// A set of axes.
constexpr Axis operator|(Axis a, Axis b) { return Axis(int(a) | int(b)); }
constexpr bool contains(Axis set, Axis axis) { return (int(set) & int(axis)) != 0; }

/// A run of indices along an axis.
struct Part {
  std::int64_t begin = 0, size = 0;
  constexpr bool operator==(const Part&) const = default;
};

/// Part `index` of `ways` balanced parts of `extent`: sizes differ by at most one, larger ones
/// first.
constexpr Part part(std::int64_t extent, std::int64_t ways, std::int64_t index) {
  const std::int64_t size = extent / ways, rest = extent % ways;
  return {index * size + std::min(index, rest), size + (index < rest ? 1 : 0)};
}

/// Ways per axis: samples, output channels, input channels, rows and columns.
struct Split {
  int batch = 1, channel = 1, input = 1, height = 1, width = 1;

  constexpr int ways() const { return batch * channel * input * height * width; }
  constexpr bool operator==(const Split&) const = default;

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
