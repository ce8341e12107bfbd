// Where measured ceilings are kept between runs.
#pragma once

#include <lamina/profile/machine.hpp>

#include <string>
#include <string_view>

namespace lamina::detail {

/// Where such things are kept: $LAMINA_CACHE, else $XDG_CACHE_HOME/lamina or ~/.cache/lamina; empty
/// where there is no such place, or LAMINA_CACHE is 0.
std::string cache_folder();

/// A file there for what `key` says: FOLDER/KIND-HASH.ENDING; empty where there is no such folder.
std::string cache_path(const char* kind, std::string_view key, const char* ending);

/// Writes one, with its folder; where that cannot be, nothing is kept.
void keep_in_cache(const std::string& path, const std::string& content);

/// What is measured here depends on: host, processor, threads, ranks per node, back end and so on,
/// in one line of JSON. It holds for no other.
std::string cache_key(const World& world, const Backend& backend);

/// The cache's file for this machine, job and back end; empty where there is nowhere to keep it, or
/// LAMINA_CACHE is 0.
std::string cache_file(const World& world, const Backend& backend);

/// What cached_machine() does, with measure_machine() or what stands for it.
Machine cached_or(Machine (*measure)(const World&, const Backend&), const World& world,
                  const Backend& backend, bool again);

}  // namespace lamina::detail
