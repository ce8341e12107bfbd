// How reports reach the disk: complete, or not at all.
#pragma once

#include <string>

namespace lamina::detail {

/// Writes a new file beside `path` and renames it; what is no regular file (a pipe, /dev/stdout) is
/// written to directly. Throws Error naming `path`.
void write_file(const std::string& path, const std::string& content);

/// All of a regular file. Throws Error naming `path`.
std::string read_file(const std::string& path);

}  // namespace lamina::detail
