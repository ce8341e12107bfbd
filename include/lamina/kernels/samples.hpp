// Samples, which are f32 or bytes on the host, as elements of the type that a network computes
// with.
#pragma once

#include <lamina/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace lamina {

/// to[i] = from[i] for i < count, of this floating point type, as T(v) rounds it: once, to nearest,
/// ties to even; NaN stays NaN. Both lie on the host, and do not overlap. Runs on the threads of
/// the kernels, whose number changes no bit.
void convert_samples(const float* from, std::size_t count, DType type, void* to);

/// put_bytes() of as many samples as `to` has elements, which is plain, converted on the way: what
/// travels is of its type.
inline void put_samples(Stream& stream, const float* from, const View& to) {
  const auto fill = [from, type = to.dtype](void* part, std::size_t first, std::size_t bytes) {
    convert_samples(from + first / size_of(type), bytes / size_of(type), type, part);
  };
  space_of(to).put_filled(stream, to.data, to.bytes(), fill);
}

/// Images as bytes, n x c x h x w, with what they stand for.
struct Pixels {
  static constexpr int channels = 3;  ///< that may differ; further ones are as the last of these
  /// Of byte b of channel c: [256 * c + b].
  using Values = std::array<float, std::size_t(channels) * 256>;

  const std::uint8_t* bytes = nullptr;
  const Values* values = nullptr;
  explicit operator bool() const { return bytes != nullptr; }
  /// What byte `at` stands for, of images of this shape.
  float value(const Shape& shape, std::size_t at) const {
    const std::size_t plane = at / std::size_t(shape.h * shape.w) % std::size_t(shape.c);
    return (*values)[256 * std::min(plane, std::size_t(channels - 1)) + bytes[at]];
  }
};

/// to[i] = from.value(shape, first + i) for i < count; otherwise as convert_samples().
void convert_pixels(const Pixels& from, const Shape& shape, std::size_t first, std::size_t count,
                    DType type, void* to);

/// put_samples() of images of the shape of `to`. Throws Error where there are none.
inline void put_pixels(Stream& stream, const Pixels& from, const View& to) {
  check(bool(from), "put_pixels: expected images as bytes, got none");
  const auto fill = [&from, &to](void* part, std::size_t first, std::size_t bytes) {
    const std::size_t each = size_of(to.dtype);
    convert_pixels(from, to.shape, first / each, bytes / each, to.dtype, part);
  };
  space_of(to).put_filled(stream, to.data, to.bytes(), fill);
}

}  // namespace lamina
