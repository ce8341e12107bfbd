// The events of memory controllers, read from the kernel's description under /sys.
#include "profile/perf_events.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace lamina::detail {

namespace {

namespace fs = std::filesystem;

/// The first line, without blanks at its end; empty if there is no such file.
std::string line_of(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  while (!line.empty() && line.back() <= ' ') line.pop_back();
  return line;
}

template <class T>
std::optional<T> number(std::string_view s) {
  T value{};
  std::from_chars_result end{};
  if constexpr (std::is_floating_point_v<T>) {
    end = std::from_chars(s.data(), s.data() + s.size(), value);
  } else {
    const int base = s.starts_with("0x") ? 16 : 10;
    if (base == 16) s.remove_prefix(2);
    end = std::from_chars(s.data(), s.data() + s.size(), value, base);
  }
  if (end.ec != std::errc() || end.ptr != s.data() + s.size()) return {};
  return value;
}

/// Cuts the part before the next `at` off the front of `s`.
std::string_view next(std::string_view& s, char at) {
  const std::string_view part = s.substr(0, s.find(at));
  s.remove_prefix(std::min(s.size(), part.size() + 1));
  return part;
}

struct Range {
  unsigned first = 0, last = 0;
};

/// "0-7" or "21".
std::optional<Range> range(std::string_view s) {
  const auto first = number<unsigned>(next(s, '-'));
  const auto last = s.empty() ? first : number<unsigned>(s);
  if (!first || !last || *first > *last) return {};
  return Range{*first, *last};
}

/// "0,48" or "0-3": numbers of processors.
std::vector<int> cpu_list(std::string_view s) {
  std::vector<int> cpus;
  while (!s.empty()) {
    const auto r = range(next(s, ','));
    if (!r) return {};
    for (unsigned cpu = r->first; cpu <= r->last; ++cpu) cpus.push_back(int(cpu));
  }
  return cpus;
}

/// Puts `value` where a format says: "config:0-7" or "config1:0-7,32-35", low bits first.
bool place(std::string_view format, std::uint64_t value, PerfEvent& event) {
  const std::string_view word = next(format, ':');
  constexpr std::string_view words[] = {"config", "config1", "config2"};
  const auto at = std::find(std::begin(words), std::end(words), word);
  if (at == std::end(words) || format.empty()) return false;
  std::uint64_t& config = event.config[std::size_t(at - std::begin(words))];
  while (!format.empty()) {
    const auto r = range(next(format, ','));
    if (!r || r->last > 63) return false;
    for (unsigned bit = r->first; bit <= r->last; ++bit, value >>= 1) config |= (value & 1) << bit;
  }
  return value == 0;  // else it does not fit
}

/// "event=0x04,umask=0x03" by the formats of that device; a term without a value is 1.
std::optional<PerfEvent> parse_event(const fs::path& device, std::string_view terms) {
  const auto type = number<std::uint32_t>(line_of(device / "type"));
  if (!type || terms.empty()) return {};
  PerfEvent event{*type, {}};
  while (!terms.empty()) {
    std::string_view term = next(terms, ',');
    const std::string_view name = next(term, '=');
    const auto value = term.empty() ? std::uint64_t(1) : number<std::uint64_t>(term);
    if (!value || !place(line_of(device / "format" / name), *value, event)) return {};
  }
  return event;
}

/// Bytes per count: a scale and its unit; without them, a cache line.
std::optional<double> bytes_of(const fs::path& event) {
  const std::string scale = line_of(event.string() + ".scale");
  const std::string unit = line_of(event.string() + ".unit");
  if (scale.empty() && unit.empty()) return 64;
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit units[] = {{"Bytes", 1}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  const auto known = std::find_if(std::begin(units), std::end(units),
                                  [&](const Unit& u) { return u.name == unit; });
  const auto factor = scale.empty() ? 1.0 : number<double>(scale);
  if (known == std::end(units) || !factor) return {};
  return *factor * known->bytes;
}

std::vector<fs::path> entries(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  std::sort(found.begin(), found.end());
  return found;
}

void add(const fs::path& device, const std::string& terms, std::optional<double> bytes,
         std::vector<NodeEvent>& to) {
  const auto event = parse_event(device, terms);
  const auto cpus = cpu_list(line_of(device / "cpumask"));
  if (event && bytes && !cpus.empty()) to.push_back({*event, cpus, *bytes});
}

/// Intel names the commands to memory on servers and their bytes on others; both at once would
/// count everything twice. AMD names none: its 0x0a is a read or a write of a line, and 64 bytes.
std::vector<NodeEvent> dram_events(const fs::path& devices) {
  std::vector<NodeEvent> found;
  const auto intel = entries(devices, "uncore_imc");
  for (const char* prefix : {"cas_count_", "data_"}) {
    for (const fs::path& device : intel)
      for (const char* way : {"read", "write"})
        for (const fs::path& file : entries(device / "events", std::string(prefix) + way))
          if (!file.has_extension()) add(device, line_of(file), bytes_of(file), found);
    if (!found.empty()) return found;
  }
  for (const fs::path& device : entries(devices, "amd_umc")) add(device, "event=0x0a", 64, found);
  return found;
}

}  // namespace

PerfEvents hardware_events(const std::string& devices) {
  constexpr std::uint32_t hardware = 0;  // PERF_TYPE_HARDWARE, whose 0, 1 and 3 are
  return {{PerfEvent{hardware, {0}}, PerfEvent{hardware, {1}}, PerfEvent{hardware, {3}}},
          dram_events(devices)};  // cycles, instructions and cache misses
}

}  // namespace lamina::detail
