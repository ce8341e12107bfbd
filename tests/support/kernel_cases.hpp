// The table of kernels under test: each case runs one operation, forward and backward, on any back
// end, and can be computed by direct loops too.
#pragma once

#include "support/operands.hpp"

#include <functional>

namespace lamina::test {

struct Case {
  std::string name;
  std::vector<Shape> inputs;  ///< what is differentiated: x, or x, w and b, or several x
  Shape output;
  /// Of f32 against f64, in units of difference().
  double tolerance = 0;
  /// Direct loops over f64 values.
  std::function<Values(const std::vector<Values>& in)> naive;
  /// y, followed by one gradient per input unless `dy` is empty. All outputs start as NaN.
  std::function<std::vector<Values>(Setup&, const std::vector<Values>& in, const Values& dy)> run;

  std::vector<Values> operands() const {
    std::vector<Values> in;
    for (const Shape& s : inputs) in.push_back(random_values(s.size(), 100 + in.size()));
    return in;
  }
  Values gradient() const { return random_values(output.size(), 99); }
};

std::vector<Case> kernel_cases();

/// y, dx, dw and db of a kernel for x, w and b (`in`), or y alone where there is no `dy`.
std::vector<Values> run_weighted(Setup& setup, WeightedKernel& kernel,
                                 const std::vector<Values>& in, const Values& dy);

}  // namespace lamina::test
