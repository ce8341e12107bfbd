// Counters by Linux's perf_event_open. Elsewhere there are none.
#include "base/descriptor.hpp"
#include "profile/perf_events.hpp"

#include <lamina/base/text.hpp>

#include <cerrno>
#include <system_error>
#include <utility>

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#endif

namespace lamina {

namespace detail {

#ifdef __linux__

namespace {

/// A counter for a thread on any processor, or for a processor and all that runs on it; the first
/// of a group waits until it is told. Empty and errno if that is impossible.
Descriptor open_event(const PerfEvent& event, pid_t thread, int cpu, int group) {
  perf_event_attr attr = {};
  attr.size = sizeof attr;
  attr.type = event.type;
  attr.config = event.config[0], attr.config1 = event.config[1], attr.config2 = event.config[2];
  attr.read_format =
      PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  attr.disabled = group < 0;
  // User space only: that is allowed to everybody. Controllers know no such difference.
  attr.exclude_kernel = attr.exclude_hv = thread >= 0;
  return Descriptor(
      int(syscall(SYS_perf_event_open, &attr, thread, cpu, group, PERF_FLAG_FD_CLOEXEC)));
}

/// Counters that count at the same times: the first one leads, the others are read with it.
struct Group {
  std::vector<Descriptor> counters;

  bool add(const PerfEvent& event, pid_t thread, int cpu) {
    const int leader = counters.empty() ? -1 : counters[0].get();
    Descriptor opened = open_event(event, thread, cpu, leader);
    if (!opened) return false;
    counters.push_back(std::move(opened));
    return true;
  }

  void start() { ioctl(counters[0].get(), PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP); }

  /// Adds each counter's total, as it would be without others in its place, to `sums`.
  template <std::size_t n>
  void add_to(std::array<double, n>& sums) const {
    struct {
      std::uint64_t size, enabled, running, values[n];
    } got = {};
    const bool failed = read(counters[0].get(), &got, sizeof got) <= 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double value = failed ? -1 : scaled(got.values[i], got.enabled, got.running);
      sums[i] = value < 0 || sums[i] < 0 ? -1 : sums[i] + value;
    }
  }
};

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  std::error_code error;
  std::filesystem::directory_iterator it("/proc/self/task", error), end;
  for (; !error && it != end; it.increment(error))
    threads.push_back(pid_t(std::stol(it->path().filename().string())));
  return threads;
}

class PerfCounters final : public Counters {
 public:
  /// Says with `error` what the first thread event failed with, 0 if none did.
  PerfCounters(const PerfEvents& events, int& error) {
    error = open_threads(events);
    open_node(events);
  }

  bool empty() const { return threads_.empty() && node_.empty(); }

  Counts read() override {
    std::array<double, 3> sums = {};
    for (const Group& group : threads_) group.add_to(sums);
    const auto of = [&](int place) { return place < 0 ? -1 : sums[std::size_t(place)]; };
    Counts counts{of(places_[0]), of(places_[1]), of(places_[2])};
    if (node_.empty()) return counts;
    counts.dram_bytes = 0;
    for (const auto& [group, bytes] : node_) {
      std::array<double, 1> count = {};
      group.add_to(count);
      if (count[0] < 0 || counts.dram_bytes < 0)
        counts.dram_bytes = -1;
      else
        counts.dram_bytes += bytes * count[0];
    }
    return counts;
  }

 private:
  /// What the calling thread can count, all others must; one that has ended meanwhile need not.
  int open_threads(const PerfEvents& events) {
    int error = 0;
    std::vector<PerfEvent> wanted;
    Group group;
    for (std::size_t i = 0; i < events.thread.size(); ++i) {
      if (!events.thread[i]) continue;
      if (group.add(*events.thread[i], 0, -1)) {
        places_[i] = int(wanted.size());
        wanted.push_back(*events.thread[i]);
      } else if (error == 0) {
        error = errno;
      }
    }
    if (wanted.empty()) return error;
    threads_.push_back(std::move(group));
    threads_[0].start();
    const auto self = pid_t(syscall(SYS_gettid));
    for (const pid_t thread : threads_of_process()) {
      if (thread == self) continue;
      Group other;
      bool open = true;
      for (std::size_t i = 0; i < wanted.size() && open; ++i)
        open = other.add(wanted[i], thread, -1);
      if (open) {
        other.start();
        threads_.push_back(std::move(other));
      } else if (errno != ESRCH) {
        error = errno;
        threads_.clear(), places_ = {-1, -1, -1};
        break;
      }
    }
    return error;
  }

  void open_node(const PerfEvents& events) {
    for (const NodeEvent& event : events.dram)
      for (const int cpu : event.cpus) {
        Group group;
        if (!group.add(event.event, -1, cpu)) return node_.clear();
        group.start();
        node_.emplace_back(std::move(group), event.bytes);
      }
  }

  std::array<int, 3> places_ = {-1, -1, -1};  // of cycles, instructions and misses in a group
  std::vector<Group> threads_;
  std::vector<std::pair<Group, double>> node_;  // with the bytes of a count
};

std::string reason(int error) {
  if (error == 0) return "no events are known that this machine could count";
  std::string s = text("perf_event_open: ", std::generic_category().message(error));
  if (error == EACCES || error == EPERM)
    append(s, " (expected at most 2 in /proc/sys/kernel/perf_event_paranoid)");
  if (error == ENOENT || error == EOPNOTSUPP)
    append(s, " (many virtual machines offer no hardware events)");
  return s;
}

}  // namespace

std::unique_ptr<Counters> open_counters(const PerfEvents& events, std::string* why) {
  int error = 0;
  auto counters = std::make_unique<PerfCounters>(events, error);
  if (!counters->empty()) return counters;
  if (why) *why = reason(error);
  return nullptr;
}

#else

std::unique_ptr<Counters> open_counters(const PerfEvents&, std::string* why) {
  if (why) *why = "counters need Linux's perf_event_open";
  return nullptr;
}

#endif

}  // namespace detail

std::unique_ptr<Counters> open_counters(std::string* why) {
  return detail::open_counters(detail::hardware_events("/sys/bus/event_source/devices"), why);
}

}  // namespace lamina
