// plan(): what is measured, searched and timed for it, on samples that are made up.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/train/choose_plan.hpp>
#include <lamina/train/micro_batch.hpp>

#include <memory>
#include <utility>

namespace lamina {

namespace detail::made_up {

/// Noise as a network takes it, with targets as its loss does: classes in turn, or zeros.
class Noise final : public Dataset {
 public:
  Noise(std::int64_t size, int classes, const Transform& transform, Form target)
      : Dataset("made-up samples", classes, transform, std::move(target)), size_(size) {}

  std::int64_t size() const override { return size_; }

  void read(std::int64_t index, Sample& to) const override {
    const Shape s = shape();
    const Random random(1, std::uint64_t(index));
    to.height = s.h, to.width = s.w, to.channels = s.c;
    to.planes.resize(std::size_t(s.sample()));
    for (std::size_t i = 0; i < to.planes.size(); ++i)
      to.planes[i] = float(random.uniform(i) - 0.5);
    to.label = std::int32_t(index % classes());
    const auto targets = std::size_t(target().shape.size());
    to.labels.resize(targets);
    for (std::size_t i = 0; i < targets; ++i)
      to.labels[i] = std::int32_t(i % std::size_t(classes()));
    to.values.assign(targets, 0.0f);
  }

 private:
  std::int64_t size_;
};

}  // namespace detail::made_up

LAMINA_INLINE std::unique_ptr<Dataset> made_up_samples(const Network& network, std::int64_t size) {
  const Network::Vertex& last = network.graph().back();
  check(last.layer && last.layer->is_loss(), "made-up samples: the network ends in ", last.name,
        ": expected a loss, as SoftmaxCrossEntropy");
  const std::vector<Shape> xs = network.input_shapes(last, 1);
  Transform transform;
  transform.shape = network.sample(), transform.shape.n = 1;
  return std::make_unique<detail::made_up::Noise>(size, int(xs[0].c), transform,
                                                  last.layer->targets(xs));
}

LAMINA_INLINE ChosenPlan plan(const Network& network, const World& world,
                              const Optimizer& optimizer, TrainerOptions options, Cluster cluster,
                              const ChooseOptions& choose) {
  expect_one_backend("plan", world.comm(), options.backend, options.dtype);
  const auto samples = made_up_samples(network, options.batch);
  PlaceOptions placing = placing_of(options);
  placing.backend = make_backend(options.backend, options.dtype);
  Calibration calibration = calibrate(network, placing, optimizer.rule(), world, std::move(cluster),
                                      {.planner = choose.planner});
  ChosenPlan chosen = choose_plan(network, *samples, world, optimizer, std::move(options),
                                  calibration.cluster, choose, calibration.times);
  chosen.calibration = std::move(calibration);
  return chosen;
}

LAMINA_INLINE ChosenPlan plan(const Network& network, const World& world,
                              const Optimizer& optimizer, TrainerOptions options,
                              const ChooseOptions& choose) {
  expect_one_backend("plan", world.comm(), options.backend, options.dtype);
  Cluster cluster = measure_cluster(world, *make_backend(options.backend, options.dtype));
  for (Nodes& nodes : cluster.nodes) nodes.device.memory *= 1 - MicroBatchOptions().reserve;
  return plan(network, world, optimizer, std::move(options), std::move(cluster), choose);
}

}  // namespace lamina
