// ReLU: y = max(x, 0). Sends nothing under any split.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

class ReLU final : public UnaryLayer {
 public:
  struct Options {};
  explicit ReLU(Options) {}

  std::string_view type() const override { return "ReLU"; }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 1, 1);
  }
  std::optional<Epilogue> as_epilogue() const override { return Epilogue{.activation = kind()}; }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.activation(kind(), x);
  }

 private:
  static Activation kind() { return {Activation::Kind::relu}; }
};

}  // namespace lamina
