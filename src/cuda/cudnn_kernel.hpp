// CudnnKernel: a pass of a layer that cuDNN computes, in the fastest of its ways, which is timed on
// the GPU, once for all processes.
#pragma once

#include "cuda/cudnn_graph.hpp"
#include "cuda/memory.hpp"

#include <lamina/kernels/choice.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lamina::cuda {

/// cuDNN on one GPU, for all kernels of a back end.
struct CudnnOnGpu {
  std::shared_ptr<Memory> memory;
  Gpu gpu;
  Demands demands;
  std::string name;                 ///< of library and GPU: what times hold for
  std::shared_ptr<Verdicts> times;  ///< seconds
};

/// Where a pass's operands lie, and behind them the areas of scratch memory that Wiring names.
using Addresses = std::span<void* const>;

/// What of a pass a graph computes.
struct Wiring {
  using Work = std::function<cudaError_t(cudaStream_t, Addresses)>;

  std::vector<int> operands;  ///< of the graph: which address each has; for null the first area's
  Work then = {};             ///< what is left to do behind it
  std::vector<std::size_t> areas = {};  ///< bytes
  Work first = {};                      ///< what is to be done before it
  std::string named = {};               ///< so it is called in front of the way's name: "blocks+"
};

struct Candidate {
  CudnnGraph graph;
  Wiring wiring;
};

class CudnnKernel {
 public:
  static constexpr std::size_t most_addresses = 8;

  /// The fastest way of all candidates. `what` names the pass, with all that its time depends on;
  /// `bytes` are those of its operands. Throws Error where cuDNN has none.
  CudnnKernel(const CudnnOnGpu& on, const std::string& what, std::span<const std::size_t> bytes,
              std::span<const Candidate> candidates);

  const std::string& name() const { return plan_->name(); }
  /// Bytes that it wants to write to while it runs.
  std::size_t scratch() const;
  /// Puts it into the queue's stream.
  void run(Queue& queue, std::initializer_list<void*> operands) {
    run(queue, Addresses(operands.begin(), operands.size()));
  }

 private:
  CudnnKernel(CudnnPlan plan, const Wiring& wiring) : plan_(std::move(plan)), wiring_(wiring) {}

  class Bench;

  void run(Queue& queue, Addresses operands);

  std::optional<CudnnPlan> plan_;
  Wiring wiring_;
};

}  // namespace lamina::cuda
