// Telltale: a device that tells on whoever treats it as the host. It computes as the reference back
// end does, but its memory has no access rights where it was handed out: only its kernels, which
// see it through another mapping, can read or write it. An address followed by anybody else is a
// segmentation fault.
#pragma once

#include <lamina/kernels/backends.hpp>

#include <cstddef>
#include <memory>

namespace lamina::test {

/// A device of its own each: what one has handed out is no operand for another.
std::shared_ptr<const Backend> telltale_backend();

/// How often bytes were copied between the host and the memory of this device.
std::size_t crossings(const Backend& telltale);

}  // namespace lamina::test
