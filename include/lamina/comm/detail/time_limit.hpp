// How long ranks wait for each other.
#pragma once

#include <lamina/base/error.hpp>

#include <cstdlib>

namespace lamina::detail {

/// Seconds: LAMINA_COMM_TIMEOUT, where it is set. Throws Error where that is no number above 0.
inline double time_limit(double otherwise = 300) {
  const char* value = std::getenv("LAMINA_COMM_TIMEOUT");
  if (!value || !*value) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  check(*end == 0 && seconds > 0, "LAMINA_COMM_TIMEOUT=", value,
        ": expected a number of seconds above 0");
  return seconds;
}

}  // namespace lamina::detail
