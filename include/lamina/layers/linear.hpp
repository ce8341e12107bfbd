// Linear: every output is a weighted sum of all inputs of its sample.
#pragma once

#include <lamina/layers/weighted.hpp>

namespace lamina {

/// y[n,k] = b[k] + sum_c w[k,c] x[n,c];  an x of any height and width counts as c*h*w features
///
/// weighted.hpp says what each split sends.
class Linear final : public WeightedLayer {
 public:
  struct Options {
    std::int64_t features = 0;  ///< of y
    bool bias = true;
    /// Standard deviation with which weights start (the bias is then 0); if 0, both start uniform
    /// within +-1/sqrt(inputs).
    double normal = 0;
  };

  explicit Linear(Options o);

  std::string_view type() const override { return "Linear"; }
  std::string describe() const override { return text(o_.features); }
  std::string options() const override {
    return text(describe(), o_.bias ? "" : " no bias",
                o_.normal > 0 ? " normal " + exact(o_.normal) : "");
  }
  Shape output(std::span<const Shape> xs) const override { return {only(xs).n, o_.features, 1, 1}; }

  Axis splits() const override { return Axis::batch | Axis::channel | Axis::input; }
  std::string_view limit(Axis axis, std::span<const Shape> xs) const override;

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place_with(const Epilogue& e, std::span<const Spec> xs,
                       const Site& site) const override;

 protected:
  Fusible kernel() const override { return Fusible::linear; }
  bool has_bias() const override { return o_.bias; }

 private:
  Options o_;
};

}  // namespace lamina
