// LayerTimes: how long the kernels of a layer take, for whoever plans.
#pragma once

#include <lamina/layers/layer.hpp>
#include <lamina/plan/cluster.hpp>

#include <span>

namespace lamina {

/// Seconds of the kernels of a layer in one step, on the rank that they take longest on.
struct LayerSeconds {
  double forward = 0, input_grad = 0, weight_grad = 0;
  double recompute = 0;  ///< forward once more, where y is not kept
  double update = 0;     ///< of its parameters

  double total() const { return forward + input_grad + weight_grad + recompute + update; }
  LayerSeconds& operator+=(const LayerSeconds& o) {
    forward += o.forward, input_grad += o.input_grad, weight_grad += o.weight_grad;
    recompute += o.recompute, update += o.update;
    return *this;
  }
};

class LayerTimes {
 public:
  virtual ~LayerTimes() = default;
  /// Of a layer with inputs of these whole shapes under a split that is legal; what flows in is of
  /// `precision.compute`, and `cost` is what the layer says it costs so.
  virtual LayerSeconds of(const Layer& layer, std::span<const Shape> xs, const Split& split,
                          const Cost& cost, const Precision& precision,
                          const UpdateRule& rule) const = 0;
  LayerSeconds of(const Layer& layer, std::span<const Shape> xs, const Split& split,
                  const Precision& precision, const UpdateRule& rule) const {
    return of(layer, xs, split, layer.cost(xs, split, precision.compute), precision, rule);
  }
};

/// By formulas, without any measurement: a pass takes launch + max(FLOP/rate, bytes/bandwidth)
/// (Williams, Waterman and Patterson, "Roofline", 2009), with the Work that the layer's cost
/// states, the multiplications with zeros around x left out, and the rates of the cluster's
/// devices: that of convolutions for layers whose weights meet windows of x, that of GEMM for all
/// others. Where devices or parts are unlike, the rank that takes longest counts.
class FormulaTimes final : public LayerTimes {
 public:
  explicit FormulaTimes(Cluster cluster) : cluster_(std::move(cluster)) {}
  using LayerTimes::of;
  LayerSeconds of(const Layer& layer, std::span<const Shape> xs, const Split& split,
                  const Cost& cost, const Precision& precision,
                  const UpdateRule& rule) const override;

 private:
  Cluster cluster_;
};

/// The part of the largest rank's work that rank `rank` has under a split of x into y: 1 where
/// parts are alike.
double share_of_work(const Split& split, const Shape& x, const Shape& y, int rank);

}  // namespace lamina
