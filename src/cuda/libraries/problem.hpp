// What NVIDIA's libraries are asked to compute, and the ways that they have of doing so.
#pragma once

#include "cuda/queue.hpp"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lamina::cuda {

/// Where operands lie, in the order of a problem or of a pass.
using Addresses = std::span<void* const>;

/// A way that is ready to run.
class Plan {
 public:
  virtual ~Plan() = default;
  /// Bytes that it wants to write to while it runs.
  virtual std::size_t workspace() const = 0;
  /// Puts it into the queue's stream. What has run with these addresses before allocates nothing.
  virtual void run(Queue& queue, void* workspace, Addresses operands) = 0;
};

struct Way {
  std::string name;  ///< "cudnn:62": the library, and the number that this has there
  /// While the problem is there. Throws Error where the library cannot after all.
  std::function<std::unique_ptr<Plan>()> plan;
};

struct LibrariesOnGpu;

class Problem {
 public:
  virtual ~Problem() = default;
  /// Those that do what is demanded, in the order in which the library would try them; none where
  /// it has none.
  virtual std::vector<Way> ways(const LibrariesOnGpu& on) const = 0;
};

}  // namespace lamina::cuda
