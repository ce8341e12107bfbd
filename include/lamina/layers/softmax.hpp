// Softmax: probabilities over the channels at every position.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

/// y[c] = exp(x[c]) / sum_c' exp(x[c']);  dx = y (dy - sum_c' dy[c'] y[c'])
///
/// Sends nothing: its channels are not cut. A network that is trained ends in
/// SoftmaxCrossEntropy instead.
class Softmax final : public UnaryLayer {
 public:
  struct Options {};
  explicit Softmax(Options) {}

  std::string_view type() const override { return "Softmax"; }
  Axis splits() const override { return Axis::batch | Axis::height | Axis::width; }
  std::string_view limit(Axis axis, std::span<const Shape> xs) const override {
    return axis == Axis::channel ? "its sum runs over all channels" : UnaryLayer::limit(axis, xs);
  }
  // Forward: maximum, difference, exponential, sum, division.
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 5, 4);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.softmax(x);
  }
};

}  // namespace lamina
