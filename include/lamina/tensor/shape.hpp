// Shape: the extents of a tensor. Always four, named after their use in a convolution.
#pragma once

#include <lamina/base/text.hpp>

#include <array>
#include <cstdint>

namespace lamina {

/// Extents in elements: samples, channels, height, width. A vector of c features is {n, c, 1, 1};
/// weights are {k, c, r, s}: output channels, input channels, kernel height, kernel width.
struct Shape {
  std::int64_t n = 1, c = 1, h = 1, w = 1;

  constexpr std::int64_t size() const { return n * c * h * w; }
  /// Elements of one sample.
  constexpr std::int64_t sample() const { return c * h * w; }
  constexpr bool operator==(const Shape&) const = default;
  std::string text() const { return lamina::text(n, 'x', c, 'x', h, 'x', w); }
};

/// Axes by number, in some order: n, c, h, w are 0 to 3.
using AxisOrder = std::array<int, 4>;

}  // namespace lamina
