// peek: how tests look into tensors, wherever these lie.
#pragma once

#include <lamina/tensor/stream.hpp>
#include <lamina/tensor/tensor.hpp>

#include <vector>

namespace lamina::test {

/// Set by a device whose memory the host cannot read.
inline View (*device_peek)(const View&) = nullptr;

/// Whether there is one.
inline bool on_device() { return device_peek != nullptr; }

/// Whether that carries collectives by itself.
inline bool (*device_carries)() = nullptr;
inline bool over_device() { return device_carries && device_carries(); }

/// The same buffer for the host to read and write, when nothing is under way on its device.
inline View peek(const View& v) { return v.space ? device_peek(v) : v; }

/// What is in a plain buffer on the host, whatever its type.
inline std::vector<double> numbers(const View& plain) {
  return visit(plain.dtype, [&]<class T>(T) {
    const auto elements = plain.elements<const T>();
    return std::vector<double>(elements.begin(), elements.end());
  });
}

}  // namespace lamina::test
