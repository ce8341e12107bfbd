// A folder that goes away, and whole files.
#pragma once

#include <lamina/base/text.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace lamina::test {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / text("lamina-profile-", ::getpid());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return path / name; }
  int files() const { return int(std::distance(std::filesystem::directory_iterator(path), {})); }
};

inline std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

inline void write(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
}

}  // namespace lamina::test
