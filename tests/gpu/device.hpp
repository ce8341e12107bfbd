// Where the memory lies that a GPU computes on in tests.
#pragma once

namespace lamina::test {

/// Whether what a back end allocates from now on is to be memory that the host can touch, too. On
/// stand-ins all memory is.
inline bool host_looks_in = false;

}  // namespace lamina::test
