// A back end that is unlike the others in what it fuses: all that are built in fuse alike.
#pragma once

#include <lamina/kernels/backend.hpp>

namespace lamina::test {

/// The reference, which fuses nothing into batch norm.
std::shared_ptr<const Backend> reserved_backend();

}  // namespace lamina::test
