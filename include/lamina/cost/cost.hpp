// Cost: what a layer must compute and move, by pure arithmetic; needs no device.
#pragma once

#include <lamina/cost/collective.hpp>
#include <lamina/cost/split.hpp>
#include <lamina/cost/update_rule.hpp>
#include <lamina/tensor/precision.hpp>
#include <lamina/tensor/stream.hpp>

#include <vector>

namespace lamina {

/// One fused multiply-add counts as 2 FLOP. Bytes are compulsory traffic: each operand once.
struct Work {
  double flops = 0, bytes = 0;
  double padding = 0;  ///< of `flops`: with the zeros around x, which kernels may leave out

  /// FLOP per byte; 0 where nothing moves.
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
  Work& operator+=(const Work& other) {
    flops += other.flops, bytes += other.bytes, padding += other.padding;
    return *this;
  }
};

/// One collective of a layer in a training step. With the layer's split, `axes` say which ranks
/// take part in it together (cost/group.hpp): they are split.ways(axes), and where that is one,
/// nothing is sent.
struct Message {
  Collective op;
  Pass pass;               ///< in which it starts
  double bytes = 0;        ///< as Operation::bytes, of the rank that sends the most
  Axis axes = Axis::none;  ///< along which the ranks of its group differ
  bool once = false;       ///< not sent again where forward is recomputed
};

/// Of one training step on the rank with the largest part.
struct Cost {
  Work forward = {};
  Work recompute = forward;  ///< forward once more, in backward; only where y is not kept
  Work input_grad = {}, weight_grad = {};
  double parameters = 0;  ///< elements that this rank updates
  std::vector<Message> messages = {};
};

/// Work of `rule` on that many parameters: momentum SGD reads w, dw and v and writes w and v; where
/// there are master weights, it reads and writes those, and writes w. What a rule of one's own
/// computes is not known, but what it moves.
inline Work update_work(const UpdateRule& rule, double parameters, const Precision& p) {
  using Kind = UpdateRule::Kind;
  const double sgd = rule.momentum != 0 ? (rule.nesterov ? 6 : 4) : 2;
  const double flops = rule.kind == Kind::custom ? 0 : rule.kind == Kind::sgd ? sgd : 12;
  const auto bytes = [](DType t) { return double(size_of(t)); };
  const double w = bytes(p.weights), state = bytes(p.states);
  const double values = keeps_master(p.weights, p.states) ? 2 * state + w : 2 * w;
  return {flops * parameters,
          (bytes(p.gradients) + values + 2 * rule.states() * state) * parameters};
}

}  // namespace lamina
