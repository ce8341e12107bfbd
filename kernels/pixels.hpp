// Images that come as bytes, as elements of the type that a network computes with.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

/// As Pixels::Values.
struct PixelValues {
  static constexpr int channels = 3;
  float of[channels * 256];
};

/// As lamina::convert_pixels(): images of `channels` planes, of `plane` bytes each; there are fewer
/// than 2^31 bytes.
cudaError_t convert_pixels(cudaStream_t, DType, std::int64_t planes, std::int64_t plane,
                           std::int64_t channels, const PixelValues&, const std::uint8_t* bytes,
                           void* to);

}  // namespace lamina::cuda
