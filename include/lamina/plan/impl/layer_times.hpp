// Kernel times by formulas.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/layer_times.hpp>

#include <algorithm>

namespace lamina {

namespace detail::layer_times {

/// Seconds of work on a device; nothing where there is none.
inline double seconds(const Work& work, const DeviceModel& device, double rate) {
  if (work.flops <= 0 && work.bytes <= 0) return 0;
  return device.launch +
         std::max((work.flops - work.padding) / rate, work.bytes / device.bandwidth);
}

/// The largest parts of the ranks on each kind of device, as parts of what the largest rank has.
inline std::vector<std::pair<const DeviceModel*, double>> loads(const Cluster& cluster,
                                                                const Split& split, const Shape& x,
                                                                const Shape& y) {
  if (cluster.nodes.size() == 1) return {{&cluster.nodes[0].device, 1.0}};
  std::vector<std::pair<const DeviceModel*, double>> all;
  for (int r = 0; r < split.ways(); ++r) {
    const DeviceModel* device = &cluster.device_of(r);
    if (all.empty() || all.back().first != device) all.push_back({device, 0.0});
    all.back().second = std::max(all.back().second, share_of_work(split, x, y, r));
  }
  return all;
}

inline Work part_of(const Work& work, double share) {
  return {work.flops * share, work.bytes * share, work.padding * share};
}

}  // namespace detail::layer_times

LAMINA_INLINE double share_of_work(const Split& split, const Shape& x, const Shape& y, int rank) {
  const Place at = split.place(rank);
  double share = 1;
  const auto count = [&](Axis axis, std::int64_t extent) {
    if (split.ways(axis) > 1)
      share *= double(split.part(axis, extent, at).size) / double(split.largest(axis, extent));
  };
  count(Axis::batch, x.n), count(Axis::input, x.c), count(Axis::channel, y.c);
  count(Axis::height, x.h), count(Axis::width, x.w);
  return share;
}

LAMINA_INLINE LayerSeconds FormulaTimes::of(const Layer& layer, std::span<const Shape> xs,
                                            const Split& split, const Cost& cost,
                                            const Precision& precision,
                                            const UpdateRule& rule) const {
  namespace d = detail::layer_times;
  const Work update = update_work(rule, cost.parameters, precision);
  const bool windows = layer.multiplies() && contains(layer.splits(), Axis::height);
  LayerSeconds most;
  for (const auto& [device, share] : d::loads(cluster_, split, xs[0], layer.output(xs))) {
    const DeviceModel::Flops& flops = device->flops_of(precision.compute);
    const double rate = windows ? flops.conv : flops.gemm;
    const auto pass = [&](double& to, const Work& work) {
      to = std::max(to, d::seconds(d::part_of(work, share), *device, rate));
    };
    pass(most.forward, cost.forward), pass(most.recompute, cost.recompute);
    pass(most.input_grad, cost.input_grad), pass(most.weight_grad, cost.weight_grad);
    if (cost.parameters > 0)  // what lies side by side is updated by one call
      most.update = std::max(most.update, update.bytes / device->bandwidth);
  }
  return most;
}

}  // namespace lamina
