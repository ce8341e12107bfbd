// Layers as ranges, on a stand-in for NVTX that keeps what is called.
#include "catch.hpp"
#include "support/training.hpp"

#include <lamina/kernels/backends.hpp>

#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

using namespace lamina;
using namespace lamina::test;

namespace {

std::vector<std::string> called;

}  // namespace

int nvtxRangePushA(const char* words) {
  called.emplace_back(words);
  return 0;
}
int nvtxRangePop() {
  called.emplace_back("end");
  return 0;
}

TEST_CASE("layers are ranges of NVTX by phase and name, also where steps are recorded") {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Flatten>({}, "flat").add<Linear>({.features = 4}, "fc");
  const auto data = small_data(48);
  Trainer trainer(net, World(), SGD{}, {.batch = 12, .backend = "reference"});
  auto loader = trainer.loader(*data, true);
  for (int i = 0; i < 8; ++i) trainer.step(loader, 10);
  CHECK(trainer.graph() == "steps are recorded");
  CHECK(called.empty());
  const auto ranges = cuda_ranges();
  for (int i = 0; i < 2; ++i) {
    trainer.stream().listen_with(ranges.get());
    trainer.step(loader, 10);
    trainer.stream().listen_with(nullptr);
    trainer.step(loader, 10);
    const std::vector<std::string> expected{"forward flat", "end", "forward fc",    "end",
                                            "forward loss", "end", "backward loss", "end",
                                            "backward fc",  "end", "update fc",     "end"};
    CHECK(called == expected);
    called.clear();
  }
}
