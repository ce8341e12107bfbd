// What differs from step to step. Kernels read it where they are, so that a step which a device has
// recorded can be run again with other values.
#pragma once

#include <lamina/tensor/precision.hpp>
#include <lamina/tensor/stream.hpp>
#include <lamina/tensor/tensor.hpp>

#include <cstdint>
#include <string>

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

/// By what the gradient of the loss is multiplied, and gradients of parameters are divided again:
/// else small ones vanish in f16. Exact, since it is a power of two.
struct LossScaling {
  double start = 0;         ///< a power of two from 1 on; 0 = off
  int double_after = 2000;  ///< so many steps in a row without overflow double it, an overflow
                            ///< halves it; 0 = it stays
  static constexpr double least = 1, most = 1 << 24;
  /// Training ends when so many steps in a row have overflowed and it could not be halved.
  static constexpr int patience = 50;

  bool on() const { return start > 0; }
  std::string text() const;
  /// Throws Error for numbers that cannot be.
  void check() const;
  /// What a network in these types trains with: on with f16.
  static LossScaling usual(const Precision& p) {
    return {p.compute == DType::f16 || p.gradients == DType::f16 ? 65536.0 : 0.0};
  }
  bool operator==(const LossScaling&) const = default;
};

/// Where that stands. Kernels read and change it.
struct LossScale {
  double scale = 1;
  double good = 0;     ///< steps without overflow since it changed
  double skipped = 0;  ///< updates, of all, that were not made since a gradient had overflowed
  double stuck = 0;    ///< of these the last ones, in a row, at a scale that could not be halved

  std::string text() const;
  /// After a step; on devices, too.
  constexpr void adjust(const LossScaling& how, bool overflowed) {
    const bool moves = how.double_after > 0;
    if (overflowed) {
      const bool halves = moves && scale > LossScaling::least;
      if (halves) scale /= 2;
      good = 0, ++skipped, stuck = halves ? 0 : stuck + 1;
      return;
    }
    stuck = 0;
    if (++good < how.double_after || !moves) return;
    good = 0;
    if (scale < LossScaling::most) scale *= 2;
  }
  bool operator==(const LossScale&) const = default;
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
  double clip_norm = 0;  ///< 0: they are not
  /// LossScale: gradients are divided by it, and where their squares are not finite `skip` says so.
  View loss_scale = {};
  bool skip = false;  ///< nothing is to be updated
};

}  // namespace lamina
