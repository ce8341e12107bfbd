// Samples, which are f32 on the host, as elements of the type that a network computes with.
#pragma once

#include <lamina/tensor/tensor.hpp>

#include <cstddef>

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

}  // namespace lamina
