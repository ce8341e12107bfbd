#include "golden.hpp"

#include "../catch.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace lamina::test {

void golden(const std::string& name, const std::string& content) {
  const std::filesystem::path file = std::filesystem::path(LAMINA_SOURCE) / "tests/golden" / name;
  const auto write = [&](const std::filesystem::path& to) {
    std::filesystem::create_directories(to.parent_path());
    std::ofstream(to, std::ios::binary) << content;
  };
  if (const char* approve = std::getenv("LAMINA_APPROVE"); approve && *approve != '0') {
    write(file);
    SUCCEED("approved");
    return;
  }
  std::ostringstream expected;
  expected << std::ifstream(file, std::ios::binary).rdbuf();
  if (content != expected.str()) write(std::filesystem::path("golden-found") / name);
  INFO("found: " << (std::filesystem::current_path() / "golden-found" / name).string()
                 << "; if it is right: ./dev approve");
  CHECK(content == expected.str());
}

}  // namespace lamina::test
