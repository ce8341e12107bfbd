// Measured kernel times in a file beside the ceilings, one for each machine, job and back end.
#include "machine/cache.hpp"

#include <lamina/base/file.hpp>
#include <lamina/plan/calibrate.hpp>

#include <cstdio>
#include <filesystem>

namespace lamina {

namespace {

constexpr std::uint64_t most_bytes = 64 << 20;  // of a file that could be ours

/// The file says in its first line for what it is, so that it serves nothing else.
struct Kept {
  std::string path, head;

  Kept(const World& world, const Backend& backend) : head(detail::cache_key(world, backend)) {
    path = detail::cache_path("layers", head, "json");
  }

  /// What it holds; nothing where there is no such file. Throws Error for what is not one.
  std::string content() const {
    if (path.empty() || !std::filesystem::exists(path)) return "";
    std::string all = read_file(path, most_bytes);
    check(all.starts_with(head + '\n'), "it is of another machine, or damaged");
    return all.substr(head.size() + 1);
  }
};

void read(MeasuredTimes& times, const Kept& kept, bool warn) {
  try {
    if (const std::string json = kept.content(); !json.empty()) add_measured_json(times, json);
  } catch (const std::exception& e) {
    if (!warn) return;
    std::fprintf(stderr, "lamina: warning: %s: %s; its layers are measured again\n",
                 kept.path.c_str(), e.what());
  }
}

}  // namespace

void load_measured(MeasuredTimes& times, const World& world, const Backend& backend) {
  const Kept kept(world, backend);
  MeasuredTimes mine = times;
  if (world.rank() == 0) read(mine, kept, true);
  add_measured_json(times, world.comm().broadcast_text(measured_json(mine)));
}

void keep_measured(const MeasuredTimes& times, const World& world, const Backend& backend) {
  const Kept kept(world, backend);
  if (world.rank() != 0 || kept.path.empty()) return;
  MeasuredTimes all = times;
  read(all, kept, false);
  detail::keep_in_cache(kept.path, kept.head + '\n' + measured_json(all));
}

}  // namespace lamina
