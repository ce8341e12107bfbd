// bf16 and f16: floating point numbers of two bytes. They are stored so, and computed with as
// float.
#pragma once

#include <bit>
#include <cstdint>

namespace lamina {

/// A sign, `Exponent` bits of exponent and 15 - Exponent of fraction, as IEEE 754 has them.
/// To float is exact. From float or double rounds once, to nearest, ties to even: what is too large
/// becomes infinite, what is too small a subnormal number or zero, and NaN stays NaN.
template <int Exponent>
struct Narrow {
  std::uint16_t bits = 0;

  constexpr Narrow() = default;
  constexpr explicit Narrow(double v) : bits(rounded(v)) {}
  constexpr operator float() const {
    const std::uint32_t sign = std::uint32_t(bits >> 15) << 31;
    const std::uint32_t size = bits & 0x7FFFU, exponent = size >> fraction;
    if (bias < 127 && exponent == 0) {  // zero and what is subnormal here alone
      const float magnitude = float(size) * std::bit_cast<float>((128U - bias - fraction) << 23);
      return sign ? -magnitude : magnitude;
    }
    const std::uint32_t finite = (size << (23 - fraction)) + ((127U - bias) << 23);
    return std::bit_cast<float>(sign | finite | (exponent == all_ones ? 0xFFU << 23 : 0));
  }

 private:
  static constexpr int fraction = 15 - Exponent, bias = (1 << (Exponent - 1)) - 1;
  static constexpr std::uint32_t all_ones = (1U << Exponent) - 1, infinity = all_ones << fraction;

  static constexpr std::uint16_t rounded(double v) {
    const auto wide = std::bit_cast<std::uint64_t>(v);
    const std::uint64_t hidden = std::uint64_t(1) << 52, digits = wide & (hidden - 1);
    const auto sign = std::uint32_t(wide >> 63) << 15;
    const int exponent = int(wide >> 52 & 0x7FF) - 1023, lowest = 1 - bias;
    if (exponent == 1024)  // the first bit of NaN's fraction says that it is a quiet one
      return std::uint16_t(sign | infinity |
                           (digits ? digits >> (52 - fraction) | 1U << (fraction - 1) : 0));
    const bool subnormal = exponent < lowest;
    const int dropped = 52 - fraction + (subnormal ? lowest - exponent : 0);  // bits
    if (dropped > 53) return std::uint16_t(sign);
    const std::uint64_t all = digits | hidden, half = std::uint64_t(1) << (dropped - 1);
    std::uint64_t kept = all >> dropped;
    const std::uint64_t rest = all & (2 * half - 1);
    kept += rest > half || (rest == half && kept % 2 == 1);
    if (!subnormal) kept += std::uint64_t(exponent - lowest) << fraction;  // a carry goes in there
    return std::uint16_t(sign | (kept < infinity ? kept : infinity));
  }
};

using BF16 = Narrow<8>;  ///< the upper half of a float: its range, with 8 digits
using F16 = Narrow<5>;   ///< "half": up to 65504, with 11 digits
static_assert(sizeof(BF16) == 2 && sizeof(F16) == 2);

}  // namespace lamina
