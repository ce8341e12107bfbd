// How much of the host's memory can still be had, as the files of a system say.
#pragma once

#include <cstddef>
#include <string>

namespace lamina::detail {

/// What available_memory() says where the root of the file system is `root`.
std::size_t available_memory_under(const std::string& root);

}  // namespace lamina::detail
