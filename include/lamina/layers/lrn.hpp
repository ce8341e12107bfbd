// LRN: local response normalisation across channels (Krizhevsky et al., 2012).
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

/// y = x / (k + alpha/size * sum of x^2 over the `size` channels around it)^beta
///
/// Sends nothing under a split of samples or positions.
class LRN final : public UnaryLayer {
 public:
  struct Options {
    std::int64_t size = 5;
    double alpha = 1e-4, beta = 0.75, k = 2;
  };
  explicit LRN(Options o) : o_(o) {
    check(o_.size > 0 && o_.size % 2 == 1, "size must be positive and odd, got ", o_.size);
    check(o_.k > 0 && o_.alpha >= 0, "k must be positive and alpha not negative, got ", o_.k,
          " and ", o_.alpha);
  }

  std::string_view type() const override { return "LRN"; }
  std::string describe() const override { return text("size ", o_.size); }

  // Forward: the square, `size` additions, scale, add k, power, multiply. Backward: the same sum
  // over dy y / scale, and about as much around it. A power counts as one operation.
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double size = double(o_.size);
    return per_element(split.of_input(only(xs)), t, size + 5, 2 * size + 9);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.lrn({o_.size, o_.alpha, o_.beta, o_.k}, x);
  }

 private:
  Options o_;
};

}  // namespace lamina
