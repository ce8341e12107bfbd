// The clock of every measurement: monotonic seconds.
#pragma once

#include <chrono>

namespace lamina {

/// Seconds since an arbitrary fixed point; monotonic and the same for all threads of a process.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lamina
