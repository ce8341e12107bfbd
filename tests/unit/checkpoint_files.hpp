// A folder for the checkpoints of a test, and its files as strings of bytes.
#pragma once

#include "support/error_of.hpp"

#include <lamina/base/error.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace checkpoint_files {

/// Removed at the end.
struct Folder {
  std::string path;

  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lamina-ckpt-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw lamina::Error("mkdtemp");
    path = name;
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path); }

  std::string operator/(const std::string& name) const { return path + "/" + name; }
  std::size_t files() const {
    const std::filesystem::directory_iterator all(path);
    return std::size_t(std::distance(begin(all), end(all)));
  }
};

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

using lamina::test::error_of;

}  // namespace checkpoint_files
