// Sigmoid: y = 1 / (1 + exp(-x)), dx = dy y (1 - y). Sends nothing under any split.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

class Sigmoid final : public UnaryLayer {
 public:
  struct Options {};
  explicit Sigmoid(Options) {}

  std::string_view type() const override { return "Sigmoid"; }
  // The exponential counts as one operation.
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 4, 3);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.activation({Activation::Kind::sigmoid}, x);
  }
};

}  // namespace lamina
