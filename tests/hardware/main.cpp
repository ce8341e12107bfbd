// The main() of tests that need a GPU: where none can be used it says why and ends with status 77,
// which is neither passed nor failed.
#include "catch.hpp"

#include <lamina/base/error.hpp>
#include <lamina/kernels/backends.hpp>

#include <algorithm>
#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  const bool lists = std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument.starts_with("--list");
  });
  if (!lists && lamina::cuda_devices() == 0) try {
      lamina::cuda_backend(0);
    } catch (const lamina::Error& e) {
      std::printf("skipped: %s\n", e.what());
      return 77;
    }
  return lamina::test::run_cases(argc, argv);
}
