// Layers as named ranges of NVTX, for NVIDIA's profilers.
#include <lamina/kernels/backends.hpp>

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace lamina {

namespace {

class Ranges final : public Listener {
 public:
  void begin(const LayerRun& run) override {
    words_ = name(run.phase);
    words_.append(" ").append(run.name);
    nvtxRangePushA(words_.c_str());
  }
  void end(const LayerRun&) override { nvtxRangePop(); }

 private:
  std::string words_;  // NVTX copies them
};

}  // namespace

std::unique_ptr<Listener> cuda_ranges() { return std::make_unique<Ranges>(); }

}  // namespace lamina
