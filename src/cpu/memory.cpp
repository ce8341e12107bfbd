// How much of the host's memory can still be had: what the kernel and control groups say.
#include "cpu/memory.hpp"

#include "cpu/control_groups.hpp"

#include <lamina/base/text.hpp>
#include <lamina/tensor/memory_space.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace lamina {

namespace detail {

namespace {

namespace fs = std::filesystem;

/// How the files of a version of control groups are called.
struct GroupFiles {
  const char *limit, *usage;
  const char* total;  // before the names in memory.stat that count the groups below, too
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr GroupFiles version_2{"memory.max", "memory.current", ""};

/// Nothing where there is no such file, or no number in it: "max" is no limit.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::uint64_t value = 0;
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

/// Of lines "NAME NUMBER ...", the number; 0 where none has that name.
std::uint64_t number_of(const std::string& name, const fs::path& file) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

/// What a group leaves of its limit; nothing where it has none.
std::optional<std::uint64_t> left_in(const ControlGroup& group) {
  const GroupFiles& files = group.version == 1 ? version_1 : version_2;
  const auto most = number_in(group.folder / files.limit);
  const auto all = number_in(group.folder / files.usage);
  if (!most || !all) return std::nullopt;
  std::uint64_t taken = *all;
  for (const char* part : {"inactive_file", "active_file"})  // goes when memory is needed
    taken -= std::min(taken, number_of(text(files.total, part), group.folder / "memory.stat"));
  return *most - std::min(*most, taken);
}

}  // namespace

std::size_t available_memory_under(const std::string& root) {
  const fs::path at(root);
  std::uint64_t available = 1024 * number_of("MemAvailable:", at / "proc/meminfo");
  if (available == 0) available = UINT64_MAX;
  for (const ControlGroup& group : control_groups("memory", at))
    available = std::min(available, left_in(group).value_or(UINT64_MAX));
  return available;
}

}  // namespace detail

std::size_t available_memory() { return detail::available_memory_under("/"); }

}  // namespace lamina
