// What the kernel can be asked to count, as plain data: tests ask for software events, and show
// made-up trees in place of /sys.
#pragma once

#include <lamina/profile/counters.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lamina::detail {

/// perf_event_open's name of an event.
struct PerfEvent {
  std::uint32_t type = 0;
  std::array<std::uint64_t, 3> config = {};  ///< config, config1, config2
  bool operator==(const PerfEvent&) const = default;
};

/// An event that is counted for a whole processor, not for a thread: by memory controllers.
struct NodeEvent {
  PerfEvent event;
  std::vector<int> cpus;  ///< one of each socket: where the kernel wants the counter opened
  double bytes = 0;       ///< per count
};

struct PerfEvents {
  /// Of every thread, in user space: cycles, instructions, misses.
  std::array<std::optional<PerfEvent>, 3> thread;
  std::vector<NodeEvent> dram;
};

/// The generic hardware events; those of the memory controllers as `devices` describes them
/// (/sys/bus/event_source/devices). What it cannot make sense of, it leaves out.
PerfEvents hardware_events(const std::string& devices);

/// What a counter would have counted in `enabled` time if it had not shared its place with others
/// but counted all the while, not only for `running`; -1 if it never got to count.
constexpr double scaled(std::uint64_t value, std::uint64_t enabled, std::uint64_t running) {
  if (enabled == 0) return 0;
  return running == 0 ? -1 : double(value) * (double(enabled) / double(running));
}

/// open_counters() for these events. All threads and all controllers count, or none does: a sum
/// over some of them would look like less traffic.
std::unique_ptr<Counters> open_counters(const PerfEvents& events, std::string* why);

}  // namespace lamina::detail
