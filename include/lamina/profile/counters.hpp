// Counters: what the processor counts while kernels run, where the machine lets one ask.
#pragma once

#include <memory>
#include <string>

namespace lamina {

/// Sums over a rank's threads in user space. A value below zero: this machine does not count it.
struct Counts {
  double cycles = -1, instructions = -1;
  double misses = -1;      ///< lines, of the last cache level (on AMD's Zen, of L2)
  double dram_bytes = -1;  ///< that memory controllers moved, of the whole node

  /// What happened between two readings of the same counters.
  Counts operator-(const Counts& earlier) const {
    const auto minus = [](double a, double b) { return a < 0 || b < 0 ? -1 : a - b; };
    return {minus(cycles, earlier.cycles), minus(instructions, earlier.instructions),
            minus(misses, earlier.misses), minus(dram_bytes, earlier.dram_bytes)};
  }
  Counts operator/(double n) const {
    const auto over = [n](double a) { return a < 0 ? -1 : a / n; };
    return {over(cycles), over(instructions), over(misses), over(dram_bytes)};
  }
  Counts& operator+=(const Counts& more) {
    const auto plus = [](double a, double b) { return a < 0 || b < 0 ? -1 : a + b; };
    return *this = {plus(cycles, more.cycles), plus(instructions, more.instructions),
                    plus(misses, more.misses), plus(dram_bytes, more.dram_bytes)};
  }
};

/// The counters of all threads that this process has when they are opened.
class Counters {
 public:
  virtual ~Counters() = default;
  /// Totals since the counters were opened. Allocates nothing.
  virtual Counts read() = 0;
};

/// Opens what the machine offers (Linux perf_event); null where that is nothing. `why`, if given,
/// is set to the reason in that case.
std::unique_ptr<Counters> open_counters(std::string* why = nullptr);

}  // namespace lamina
