// The clock of every measurement: monotonic seconds.
#pragma once

#include <ctime>

namespace lamina {

/// Seconds since an arbitrary fixed point; monotonic and the same for all threads of a process.
inline double now() {
  timespec t;  // <chrono> would bring all of the streams into every header
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace lamina
