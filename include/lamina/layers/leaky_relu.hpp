// LeakyReLU: y = x where x > 0, slope * x elsewhere. Sends nothing under any split.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

class LeakyReLU final : public UnaryLayer {
 public:
  struct Options {
    double slope = 0.01;
  };
  /// The slope must not be negative: backward reads the side off y.
  explicit LeakyReLU(Options o) : o_(o) {
    check(o_.slope >= 0, "slope must not be negative, got ", o_.slope);
  }

  std::string_view type() const override { return "LeakyReLU"; }
  std::string describe() const override { return text("slope ", o_.slope); }
  std::string options() const override { return "slope " + exact(o_.slope); }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 1, 1);
  }
  std::optional<Epilogue> as_epilogue() const override { return Epilogue{.activation = kind()}; }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.activation(kind(), x);
  }

 private:
  Activation kind() const { return {Activation::Kind::leaky_relu, o_.slope}; }

  Options o_;
};

}  // namespace lamina
