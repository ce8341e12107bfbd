// From f32, in loops that compilers make vectors of, and from bytes to types of elements.
#include "cpu/simd.hpp"

#include <lamina/kernels/samples.hpp>

#include <algorithm>

namespace lamina {
namespace {

using detail::put;

void put(float v, double& to) { to = v; }
/// Rounds as F16 does. What is subnormal as f16 is rounded by a sum: with 0.5, a digit of whose
/// fraction counts as the last one of these.
void put(float v, F16& to) {
  const auto u = std::bit_cast<std::uint32_t>(v), size = u & 0x7FFFFFFFU;
  const std::uint32_t normal = (size + 0xFFFU + (size >> 13 & 1U) - (112U << 23)) >> 13;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - (126U << 23);
  std::uint32_t bits = size < 113U << 23 ? subnormal : normal;
  bits = size >= 143U << 23 ? 0x7C00U : bits;
  bits = size > 0x7F800000U ? 0x7E00U | (size >> 13 & 0x3FFU) : bits;
  to.bits = std::uint16_t(bits | (u >> 16 & 0x8000U));
}

template <class T>
LAMINA_SIMD void convert_piece(const float* from, T* to, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) put(from[i], to[i]);
}

}  // namespace

void convert_samples(const float* from, std::size_t count, DType type, void* to) {
  visit(type, [&]<Floating T>(T) {
    detail::in_pieces(count, [&](std::size_t begin, std::size_t end) {
      convert_piece(from + begin, static_cast<T*>(to) + begin, end - begin);
    });
  });
}

void convert_pixels(const Pixels& from, const Shape& shape, std::size_t first, std::size_t count,
                    DType type, void* to) {
  const auto plane = std::size_t(shape.h * shape.w), channels = std::size_t(shape.c);
  visit(type, [&]<Floating T>(T) {
    std::array<T, Pixels::Values().size()> values;
    convert_piece(from.values->data(), values.data(), values.size());
    detail::in_pieces(count, [&](std::size_t begin, std::size_t end) {
      for (std::size_t n; begin < end; begin += n) {
        const std::size_t at = first + begin;
        n = std::min(end - begin, plane - at % plane);
        const auto channel = std::min(at / plane % channels, std::size_t(Pixels::channels - 1));
        const T* const of_channel = values.data() + 256 * channel;
        for (std::size_t i = 0; i < n; ++i)
          static_cast<T*>(to)[begin + i] = of_channel[from.bytes[at + i]];
      }
    });
  });
}

}  // namespace lamina
