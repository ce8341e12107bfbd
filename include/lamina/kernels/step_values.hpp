// What differs from step to step. Kernels read it where they are, so that a step which a device has
// recorded can be run again with other values.
#pragma once

#include <lamina/tensor/stream.hpp>
#include <lamina/tensor/tensor.hpp>

#include <cstdint>

namespace lamina {

/// Of forward and backward.
struct StepValues {
  std::uint64_t seed = 0;
  std::int64_t step = 0;         ///< of training, counted over all epochs
  std::int64_t micro_batch = 0;  ///< of the step
  double stop = 0;               ///< what this rank asks for: all get to know the sum
};

/// Of the update.
struct UpdateValues {
  double rate = 1;   ///< learning rate
  double step = 1;   ///< counts from 1
  double scale = 1;  ///< gradients count so many times
};

/// Such values, which are made of numbers of eight bytes, in memory that kernels reach.
template <class Values>
class Passed {
 public:
  static Form form() { return {{1, sizeof(Values) / 8, 1, 1}, DType::f64, {}}; }
  /// To be called by a kernel.
  static const Values& in(const View& view) {
    return *reinterpret_cast<const Values*>(view.as<double>());
  }

  Passed() = default;
  explicit Passed(MemorySpace& memory) : tensor_(form(), memory) {}
  /// What kernels find that come after this on the stream.
  void put(Stream& stream, const Values& values) const { put_bytes(stream, &values, tensor_); }
  const View& view() const { return tensor_.view(); }

 private:
  Tensor tensor_;
};

/// By how much a step updates parameters. The numbers can be all there is; what lies where the
/// kernels are comes in addition.
struct UpdateStep {
  double rate = 0;          ///< learning rate
  double weight_decay = 0;  ///< L2 (sgd, adam) or decoupled (adamw)
  double grad_scale = 1;    ///< multiplies dw first
  std::int64_t step = 1;    ///< counts from 1, for Adam's bias correction

  View values = {};  ///< UpdateValues, times which rate and grad_scale are; the step is theirs
  /// What the losses of the micro-batches found (PlacedNetwork::found_by_step): gradients, so far
  /// divided by `samples`, become means over the rows that count.
  View found = {};
  double samples = 0;
  /// Sums of squares, f64 {1,n,1,1}, of the gradients of all parameters: scaled down to `clip_norm`
  /// where the root of their sum is above that.
  View squares = {};
  double clip_norm = 0;
};

}  // namespace lamina
