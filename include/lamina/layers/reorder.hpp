// Reorder: the same values in another layout. The network inserts it where a kernel wants its input
// otherwise than the layer before leaves it.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

class Reorder final : public UnaryLayer {
 public:
  explicit Reorder(Form to) : to_(std::move(to)) {}

  std::string_view type() const override { return "Reorder"; }
  std::string describe() const override { return text("to ", to_.layout.name()); }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Work copy{.bytes = 2 * double(size_of(t)) * double(split.of_output(only(xs)).size())};
    return {.forward = copy, .input_grad = copy};
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.reorder(x, to_);
  }

 private:
  Form to_;
};

}  // namespace lamina
