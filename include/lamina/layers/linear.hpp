// Linear: every output is a weighted sum of all inputs of its sample.
#pragma once

#include <lamina/layers/weighted.hpp>

#include <array>

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

  explicit Linear(Options o) : o_(o) {
    check(o_.features > 0, "features must be positive, got ", o_.features);
    check(o_.normal >= 0, "the standard deviation must not be negative, got ", o_.normal);
  }

  std::string_view type() const override { return "Linear"; }
  std::string describe() const override { return text(o_.features); }
  Shape output(std::span<const Shape> xs) const override { return {only(xs).n, o_.features, 1, 1}; }

  Axis splits() const override { return Axis::batch | Axis::channel | Axis::input; }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const Shape x = split.of_input(only(xs)), y = split.of_output(output(xs));
    return cost_of(x, y, double(y.c) * double(x.sample()), split, t);
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    const std::array whole{xs[0].whole};
    const Blocks x = input_blocks(0, whole, site.split(), site.split().ways());
    halo_ = Halo(x, x, xs[0].dtype, site, Axis::none);
    const std::int64_t features =
        part(o_.features, site.split().channel, site.place().channel).size;
    kernel_ = site.backend().linear(features, o_.bias, xs[0]);
    const std::int64_t inputs = xs[0].whole.sample();
    const bool normal = o_.normal > 0;
    const Initial uniform{Initial::Kind::uniform, 1 / std::sqrt(double(inputs))};
    // Weights are counted as those of a convolution as large as x.
    const Shape w{o_.features, xs[0].whole.c, xs[0].whole.h, xs[0].whole.w};
    return finish(site, w, {o_.features, inputs},
                  normal ? Initial{Initial::Kind::normal, o_.normal} : uniform,
                  normal ? Initial{} : uniform);
  }

 protected:
  bool has_bias() const override { return o_.bias; }

 private:
  Options o_;
};

}  // namespace lamina
