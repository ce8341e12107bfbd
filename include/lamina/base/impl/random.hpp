// The one random number that needs <cmath>: 5 % of what the umbrella header would take to compile.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>

#include <cmath>
#include <numbers>

namespace lamina {

LAMINA_INLINE float Random::normal(std::uint64_t i) const {
  const auto [a, b] = pair(i);
  const double radius = std::sqrt(-2.0 * std::log((a + 1.0) * 0x1p-32));
  return float(radius * std::cos(2.0 * std::numbers::pi * 0x1p-32 * b));
}

}  // namespace lamina
