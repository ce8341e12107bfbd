// LibraryKernel: a pass of a layer that a library of NVIDIA's computes, in the fastest of the ways
// that they have, which are timed on the GPU, once for all processes.
#pragma once

#include "cuda/libraries/cublas.hpp"
#include "cuda/libraries/cudnn_graph.hpp"
#include "cuda/libraries/problem.hpp"
#include "cuda/memory.hpp"

#include <lamina/kernels/choice.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lamina::cuda {

/// NVIDIA's libraries on one GPU, for all kernels of a back end.
struct LibrariesOnGpu {
  std::shared_ptr<Memory> memory = {};
  Gpu gpu;
  CublasHandle cublas = {};  ///< null where it is not there
  Demands demands = {};
  std::string name = {};                 ///< of libraries and GPU: what times hold for
  std::shared_ptr<Verdicts> times = {};  ///< seconds
};

/// How a pass makes use of a problem.
struct Wiring {
  using Work = std::function<cudaError_t(cudaStream_t, Addresses)>;

  /// Of the problem: which address of the pass each has, or which area of scratch memory behind
  /// these; for null the first area's.
  std::vector<int> operands;
  Work then = {};                       ///< what is left to do behind it
  std::vector<std::size_t> areas = {};  ///< bytes
  Work first = {};                      ///< what is to be done before it
  std::string named = {};               ///< so it is called in front of the way's name: "blocks+"
  std::optional<DType> rectified = {};  ///< of y, the pass's last operand, where ReLU is in it
};

struct Candidate {
  std::unique_ptr<Problem> problem;
  Wiring wiring;
};

class LibraryKernel {
 public:
  static constexpr std::size_t most_addresses = 8;

  /// The fastest way of all candidates. `what` names the pass, with all that its time depends on;
  /// `bytes` are those of its operands. Throws Error where there is none.
  LibraryKernel(const LibrariesOnGpu& on, const std::string& what,
                std::span<const std::size_t> bytes, std::span<const Candidate> candidates);

  const std::string& name() const { return name_; }
  /// Bytes that it wants to write to while it runs.
  std::size_t scratch() const;
  /// Puts it into the queue's stream.
  void run(Queue& queue, std::initializer_list<void*> operands) {
    run(queue, Addresses(operands.begin(), operands.size()));
  }

 private:
  LibraryKernel(const Way& way, const Wiring& wiring)
      : name_(wiring.named + way.name), plan_(way.plan()), wiring_(wiring) {}

  class Bench;

  void run(Queue& queue, Addresses operands);

  std::string name_;
  std::unique_ptr<Plan> plan_;
  Wiring wiring_;
};

}  // namespace lamina::cuda
