// How reports reach the disk: complete, or not at all.
#pragma once

#include <cstdint>
#include <string>

namespace lamina::detail {

/// Writes a new file beside `path` and renames it; what is no regular file (a pipe, /dev/stdout) is
/// written to directly. Throws Error naming `path`.
void write_file(const std::string& path, const std::string& content);

/// All of a regular file of at most `limit` bytes. Throws Error naming `path`.
std::string read_file(const std::string& path, std::uint64_t limit);

}  // namespace lamina::detail
