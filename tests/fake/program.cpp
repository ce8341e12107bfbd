// The tool as a CUDA program, on the stand-ins: the environment says how its GPUs are.
//   LAMINA_FAKE_GPUS=N       how many there are; 1 if nothing is said
//   LAMINA_FAKE_DRIVER=V     for which CUDA the driver is, 12040 is 12.4
//   LAMINA_FAKE_MEMORY=MB    how much memory each has
//   LAMINA_FAKE_LOST=WORKS   after so many works in streams all GPUs are gone
#include "fake/runtime.hpp"

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdlib>
#include <limits>

int nvtxRangePushA(const char*) { return 0; }
int nvtxRangePop() { return 0; }

namespace lamina::test {

namespace {

std::int64_t said(const char* variable, std::int64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::atoll(value) : otherwise;
}

const bool known = [] {
  fake_gpus(int(said("LAMINA_FAKE_GPUS", 1)));
  fake_driver(int(said("LAMINA_FAKE_DRIVER", fake_cuda)));
  fake_memory(std::size_t(said("LAMINA_FAKE_MEMORY", 1 << 14)) << 20);
  lose_device_after(said("LAMINA_FAKE_LOST", std::numeric_limits<std::int64_t>::max()));
  return true;
}();

}  // namespace

}  // namespace lamina::test
