// A cache of a test's own.
#pragma once

#include <lamina/base/text.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace lamina::test {

/// A folder that LAMINA_CACHE names, and that goes with the test.
struct CacheFolder {
  std::string path =
      text(std::filesystem::temp_directory_path().string(), "/lamina-cache-", getpid());
  CacheFolder() {
    std::filesystem::remove_all(path);
    setenv("LAMINA_CACHE", path.c_str(), 1);
  }
  ~CacheFolder() {
    unsetenv("LAMINA_CACHE");
    std::filesystem::remove_all(path);
  }
};

inline std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace lamina::test
