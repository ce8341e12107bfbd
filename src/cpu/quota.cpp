// How much of the processors control groups let a process have.
#include "cpu/control_groups.hpp"
#include "cpu/processors.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>

namespace lamina::detail {

double processor_quota(const std::filesystem::path& root) {
  double least = CPU_SETSIZE;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    double time = -1, period = 0;  // in microseconds
    if (group.version == 2) {
      std::ifstream(group.folder / "cpu.max") >> time >> period;  // "max 100000" is no limit
    } else {
      std::ifstream(group.folder / "cpu.cfs_quota_us") >> time;  // -1 is none
      std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
    }
    if (time > 0 && period > 0) least = std::min(least, time / period);
  }
  return least;
}

int whole_quota() { return int(std::ceil(processor_quota())); }

}  // namespace lamina::detail
