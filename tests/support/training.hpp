// What the tests of training share: a small network with every kind of state, fixed data, and runs
// of it on one or several ranks.
#pragma once

#include "support/allocations.hpp"
#include "support/peek.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/lamina.hpp>

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace lamina::test {

/// Convolutions, batch norm (global, or none at all), a residual, dropout, linear layers.
inline Network small_network(bool batch_norm, double dropout = 0.25) {
  Network net({.c = 3, .h = 12, .w = 12});
  Node x =
      net.input().add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1, .bias = !batch_norm}, "a");
  if (batch_norm) x = x.add<BatchNorm>({.global = true}, "norm");
  x = x.add<ReLU>();
  Node y = x.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "b").add<Tanh>();
  x = net.join<Add>({x, y}).add<MaxPool2D>({.window = 2});
  x.add<Dropout>({.rate = dropout})
      .add<Linear>({.features = 16}, "c")
      .add<ReLU>()
      .add<Linear>({.features = 4}, "d");
  return net;
}

/// Batch norm whose statistics are each rank's own.
inline Network local_norm_network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "a");
  net.add<BatchNorm>({}, "first");
  net.add<ReLU>({}, "relu");
  net.add<Conv2D>({.channels = 6, .kernel = 3, .stride = 2, .bias = false}, "b");
  net.add<BatchNorm>({.momentum = 0.3}, "second");
  net.add<Linear>({.features = 4}, "c");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// So many ranks, asked for when so many steps are done.
struct Change {
  std::int64_t step;
  int ranks;
};

/// FitOptions::resize that asks for one after the other.
struct Changes {
  const Trainer& trainer;
  std::vector<Change> all;
  int asked = 0;

  int operator()() {
    const auto next = std::size_t(asked);
    if (next == all.size() || trainer.progress().step < all[next].step) return 0;
    return all[std::size_t(asked++)].ranks;
  }
};

/// Images of synthetic data, evenly spaced: tolerances of tests are for these.
class Spaced final : public Dataset {
 public:
  Spaced(std::unique_ptr<Dataset> all, std::int64_t size)
      : Dataset(all->name(), all->classes(), all->transform()), all_(std::move(all)), size_(size) {}
  std::int64_t size() const override { return size_; }
  void read(std::int64_t index, Sample& to) const override {
    all_->read(index * all_->size() / size_, to);
  }

 private:
  std::unique_ptr<Dataset> all_;
  std::int64_t size_;
};

inline std::unique_ptr<Dataset> small_data(std::int64_t size = 96, bool train = true) {
  return std::make_unique<Spaced>(
      synthetic(
          {.train = train, .channels = 3, .height = 12, .width = 12, .classes = 4, .seed = 3}),
      size);
}

/// The same images, as planes of numbers.
class Planes final : public Dataset {
 public:
  explicit Planes(const Dataset& of)
      : Dataset("planes", of.classes(), {.shape = of.shape()}), of_(of) {}
  std::int64_t size() const override { return of_.size(); }
  void read(std::int64_t index, Sample& to) const override {
    Sample sample;
    of_.read(index, sample);
    to.label = sample.label;
    to.planes.resize(std::size_t(shape().sample()));
    Transform::Scratch scratch;
    of_.transform().apply(sample, Random(0), to.planes, scratch);
  }

 private:
  const Dataset& of_;
};

/// Every parameter and running statistic in plain order, one after the other.
inline std::vector<double> weights(const PlacedNetwork& net) {
  std::vector<double> all;
  for (const auto& n : net.parameters()) {
    const Tensor plain(n.parameter->form.shape, n.parameter->form.dtype);
    net.placing().backend->copy(n.parameter->value, plain);
    for (const double v : numbers(plain)) all.push_back(v);
  }
  return all;
}

/// Losses of `steps` steps on this world.
inline std::vector<double> losses(Trainer& trainer, const Dataset& data, std::int64_t steps,
                                  FitOptions fit = {}) {
  std::vector<double> all;
  fit.steps = steps;
  fit.on_step = [&](const StepResult& r) { all.push_back(r.loss); };
  for (const Epoch& epoch : trainer.fit(data, fit)) (void)epoch;
  return all;
}

/// Bytes that a call into oneDNN may allocate at once, which is out of the library's hands: a list
/// of arguments, and without AVX-512 a workspace of its matrix products.
inline std::size_t most_of_onednn() {
  return instruction_set() >= InstructionSet::avx512_core ? 4096 : 17000;
}

/// What all ranks, which are threads, allocate in ten steps, after twenty others. Rank 0 knows; on
/// the others it is nothing.
struct Allocated {
  std::size_t count = 0, largest = 0;
};
inline Allocated allocated_by_steps(Trainer& trainer, const Dataset& data) {
  const Communicator& ranks = trainer.ranks();
  auto loader = trainer.loader(data, true);
  for (int i = 0; i < 20; ++i) trainer.step(loader, 100);
  ranks.barrier();
  std::optional<Allocations> allocations;
  if (ranks.rank() == 0) allocations.emplace();
  ranks.barrier();
  for (int i = 0; i < 10; ++i) trainer.step(loader, 100);
  ranks.barrier();
  Allocated result;
  if (allocations) result = {allocations->count(), allocations->largest()};
  ranks.barrier();
  return result;
}

}  // namespace lamina::test
