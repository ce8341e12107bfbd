// What the reference kernels do with a result before they write it.
#pragma once

#include <lamina/kernels/reference/common.hpp>

namespace lamina::detail {

/// For elements of type T, before they are rounded to it.
template <Floating T>
class ReferenceEpilogue {
 public:
  using W = Wide<T>;

  explicit ReferenceEpilogue(const Epilogue& e) : add_(e.add), slope_(W(e.slope())) {}

  bool adds() const { return add_; }
  bool activates() const { return slope_ != 1; }

  /// What becomes of `v`, element i of the result.
  W value(W v, const View& added, Index i) const {
    if (add_) v += added.as<T>()[i];
    return v > 0 || v != v ? v : below(v);  // NaN stays NaN
  }
  /// The gradient of v for that of the value, which passed as it was or not.
  W gradient(bool passed, W dy) const { return passed ? dy : below(dy); }

  /// To all of y, which holds the result.
  void apply(const View& y, const View& added) const {
    if (!adds() && !activates()) return;
    for (Index i = 0; i < y.shape.size(); ++i) y.as<T>()[i] = T(value(y.as<T>()[i], added, i));
  }

  void check_added(const View& added, const Form& y, const char* who) const {
    if (add_) check_operand(added, y, who);
  }

 private:
  /// Without a slope the product is left out: 0 * infinity would not be 0.
  W below(W v) const { return slope_ == 0 ? W(0) : slope_ * v; }

  bool add_;
  W slope_;
};

}  // namespace lamina::detail
