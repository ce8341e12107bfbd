// Tanh: y = tanh(x), dx = dy (1 - y^2). Sends nothing under any split.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

class Tanh final : public UnaryLayer {
 public:
  struct Options {};
  explicit Tanh(Options) {}

  std::string_view type() const override { return "Tanh"; }
  // tanh = (e^2x - 1) / (e^2x + 1); the exponential counts as one operation.
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 5, 3);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.activation({Activation::Kind::tanh}, x);
  }
};

}  // namespace lamina
