// Measured ceilings are kept in a file each, which says for what it is.
#include "machine/cache.hpp"

#include "machine/json.hpp"
#include "machine/measure.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/host.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/profile/detail/best.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

namespace lamina {

namespace detail {

namespace {

using Json = nlohmann::ordered_json;

constexpr int schema = 4;  // counts up when the same members mean something else, or lack some
constexpr std::uint64_t most_bytes = 16 << 20;  // of a file that could be ours

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// What the ceilings depend on. What is measured for one of these holds for no other.
Json key(const World& world, const Backend& backend) {
  Json key = {{"host", host_name()},
              {"cpu", processor_name()},
              {"processors", processors()},
              {"threads", threads()},
              {"ranks", world.size()},
              {"ranks_per_node", world.local_size()},
              // Ranks that are threads of one process have no hosts' names, and other collectives.
              {"processes", world.size() == 1 || world.hosts()[0] != "localhost"},
              {"backend", backend.description()}};
  // What lies on GPUs goes by NCCL, or by way of the host.
  if (world.size() > 1 && !backend.memory().on_host())
    key["collectives"] = world.comm().reach(backend.memory()) ? "direct" : "by way of the host";
  return key;
}

/// Nothing where there is no such file, or where it is damaged or for another key.
std::optional<Machine> load(const std::string& path, const Json& wanted) {
  try {
    if (path.empty()) return {};
    const Json json = Json::parse(read_file(path, most_bytes));
    // As text: what the file holds cannot be more exact than that.
    if (json.at("schema") != schema || dump(json.at("key")) != dump(wanted)) return {};
    return machine_from_json(JsonPart(json.at("machine")));
  } catch (const std::exception&) {  // to be measured anew
    return {};
  }
}

void store(const std::string& path, const Json& key, const Machine& machine) {
  const Json json = {{"schema", schema}, {"key", key}, {"machine", machine_to_json(machine)}};
  keep_in_cache(path, dump(json, 1) + '\n');
}

std::string path_for(const Json& key) { return cache_path("machine", dump(key), "json"); }

/// Whether this is a type's highest rate of multiply-adds.
bool is_peak(const ComputeCeiling& c, const Machine& of) {
  return c.kind == ComputeCeiling::Kind::fma && c.flops.together == of.peak(c.dtype);
}

/// Where the peak of a type is disturbed, its other multiply-adds go, too: the next one is not to
/// be taken for the peak.
Machine without_disturbed(Machine machine) {
  machine.missing = machine.disturbed();
  const auto disturbed = [](const auto& ceiling) { return ceiling.disturbed; };
  std::vector<DType> lost;
  for (const ComputeCeiling& c : machine.compute)
    if (c.disturbed && is_peak(c, machine)) lost.push_back(c.dtype);
  std::erase_if(machine.compute, [&](const ComputeCeiling& c) {
    return c.disturbed || (c.kind == ComputeCeiling::Kind::fma &&
                           std::find(lost.begin(), lost.end(), c.dtype) != lost.end());
  });
  std::erase_if(machine.memory, disturbed);
  std::erase_if(machine.comm, disturbed);
  return machine;
}

/// Rank 0's, on all ranks.
std::optional<Machine> load_on_all(const World& world, const Json& key) {
  std::string json;
  if (world.rank() == 0)
    if (const auto machine = load(path_for(key), key)) json = dump(machine_to_json(*machine));
  json = world.comm().broadcast_text(json);
  if (json.empty()) return {};
  return machine_from_json(JsonPart(Json::parse(json)));
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (const std::string own = variable("LAMINA_CACHE"); !own.empty()) return own == "0" ? "" : own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/lamina";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/lamina";
  return "";
}

std::string cache_path(const char* kind, std::string_view key, const char* ending) {
  const std::string in = cache_folder();
  const auto hash = static_cast<unsigned long long>(key_of(key));
  return in.empty() ? in : text(in, '/', kind, '-', format("%016llx", hash), '.', ending);
}

void keep_in_cache(const std::string& path, const std::string& content) {
  if (path.empty()) return;
  try {
    std::error_code failed;  // write_file says what is wrong, if anything is
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
    write_file(path, content);
  } catch (const Error&) {  // a full disk, or no home to write to
  }
}

std::string cache_key(const World& world, const Backend& backend) {
  return dump(key(world, backend));
}

std::string cache_file(const World& world, const Backend& backend) {
  return path_for(key(world, backend));
}

Machine cached_or(Machine (*measure)(const World&, const Backend&), const World& world,
                  const Backend& backend, bool again) {
  const Json wanted = key(world, backend);
  auto cached = load_on_all(world, wanted);
  if (cached && cached->missing == 0 && !again) return *std::move(cached);
  const Effort effort;
  Machine machine = measure(world, backend);
  if (machine.disturbed() > 0 && patient(world, effort))
    machine = best_of(machine, measure(world, backend));
  if (cached) machine = best_of(*cached, machine);
  if (world.rank() == 0) store(path_for(wanted), wanted, without_disturbed(machine));
  return machine;
}

}  // namespace detail

Machine cached_machine(const World& world, const Backend& backend, bool again) {
  return detail::cached_or(measure_machine, world, backend, again);
}

Machine cached_machine(const World& world, const Backend& backend, bool* found) {
  auto machine = detail::load_on_all(world, detail::key(world, backend));
  if (found) *found = machine.has_value();
  return machine ? *std::move(machine) : Machine();
}

}  // namespace lamina
