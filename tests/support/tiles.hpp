// For tests of kernels that multiply by tiles (AMX).
#pragma once

#include "catch.hpp"

#include <lamina/kernels/backends.hpp>

#include <string>

namespace lamina::test {

inline bool with_tiles() {
  return has_onednn() && onednn_backend()->description().find("amx") != std::string::npos;
}

/// The same, and says so where there is nothing to test.
inline bool tiles_available() {
  const bool so = with_tiles();
  if (!so) WARN("the processor has no tiles (AMX), or they are not used: nothing to test");
  return so;
}

}  // namespace lamina::test
