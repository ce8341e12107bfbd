// Memory planning: buffers whose lifetimes do not overlap share addresses in one arena.
#pragma once

#include <cstddef>
#include <vector>

namespace lamina {

/// Bytes of a rank, or of one layer on it. A rank's are the sum over its layers, but for
/// `activations`, those of the arena, which buffers share that do not live at the same time, and
/// `workspace`, which has the largest scratch buffer of any kernel once: it serves all of them. Of
/// a network that has another one's parameters, it also has the buffers through which they come.
struct Memory {
  std::size_t parameters = 0, gradients = 0;
  std::size_t optimizer = 0;    ///< its states: see Optimizer::memory
  std::size_t activations = 0;  ///< and their gradients
  std::size_t workspace = 0;    ///< of kernels and layers, halos included
  /// Where blocks wait that travel to or from other ranks, and with a sharded optimizer the sum of
  /// the gradients that this rank updates.
  std::size_t messages = 0;

  std::size_t total() const {
    return parameters + gradients + optimizer + activations + workspace + messages;
  }
  Memory& operator+=(const Memory& o) {
    parameters += o.parameters, gradients += o.gradients, optimizer += o.optimizer;
    activations += o.activations, workspace += o.workspace, messages += o.messages;
    return *this;
  }
  bool operator==(const Memory&) const = default;
};

/// What a buffer takes beside others: the next one begins at a cache line.
constexpr std::size_t room(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A buffer that is written first at time `first` and read last at time `last`; pack() sets
/// `offset`.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
  std::size_t offset = 0;

  bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

/// Places each buffer, largest first, into the lowest gap that none of its contemporaries occupies.
/// Returns the bytes of the arena. Offsets are multiples of `align`.
std::size_t pack(std::vector<Lifetime>& buffers, std::size_t align = 4096);

}  // namespace lamina
