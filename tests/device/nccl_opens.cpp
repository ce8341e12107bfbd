// NCCL's library is there, and has every function that is called; no GPU is needed for that.
#include "comm/nccl_calls.hpp"

#include <lamina/base/error.hpp>

#include <cstdio>

int main() {
  try {
    lamina::detail::nccl();
    return 0;
  } catch (const lamina::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
