// Layers under a split of the samples: the loss, the hits and every gradient on 2 or 3 ranks are
// those of one rank. Five samples, so that the parts are uneven.
#include "layers.hpp"
#include "support/peek.hpp"

#include <lamina/comm/threads.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::int64_t batch = 5;

/// y and all gradients and averages of one step, under their names.
using Result = std::vector<std::pair<std::string, std::vector<double>>>;

template <class Build>
Result step_on(const Communicator& ranks, Build&& build, bool training) {
  Network layers({.c = 2, .h = 4, .w = 4});
  build(layers);
  PlacedNetwork net = layers.place({.batch = batch,
                                    .backend = reference_backend(),
                                    .ranks = ranks,
                                    .dtype = DType::f64,
                                    .bucket_mb = 0});
  net.initialize(7);
  const Part rows = net.rows();
  const auto x = peek(net.x()).elements<double>();
  const auto skip = std::size_t(rows.begin * layers.sample().size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = Random(1).normal(skip + i);
  const Tensor labels({rows.size, 1, 1, 1}, DType::i32, net.placing().backend->memory());
  for (std::int64_t i = 0; i < rows.size; ++i)  // the last row is padding
    peek(labels).as<std::int32_t>()[i] =
        rows.begin + i == batch - 1 ? -1 : int((rows.begin + i) % 3);
  Stream stream;
  Context context{stream, training};
  context.targets = labels;

  net.forward(context);
  if (training) net.backward(context);
  const auto copy = [](const View& v) {
    const auto e = peek(v).elements<double>();
    return std::vector(e.begin(), e.end());
  };
  Result result{{"y", copy(net.y())}};
  for (const auto& n : net.parameters()) {
    if (!training) continue;
    n.parameter->wait(stream);
    result.push_back({n.name, copy(n.parameter->trained ? n.parameter->grad : n.parameter->value)});
  }
  return result;
}

/// The largest difference between one rank's results and those of several.
template <class Build>
double difference(int ranks, Build&& build, bool training = true) {
  const Result alone = step_on(Communicator(), build, training);
  std::vector<double> worst(std::size_t(ranks), 0);
  run_ranks(ranks, [&](World& world) {
    const Result mine = step_on(world.comm(), build, training);
    double& largest = worst[std::size_t(world.rank())];
    for (std::size_t i = 0; i < alone.size(); ++i)
      for (std::size_t j = 0; j < alone[i].second.size(); ++j)
        largest = std::max(largest, std::abs(alone[i].second[j] - mine[i].second[j]));
  });
  return *std::max_element(worst.begin(), worst.end());
}

template <class L>
auto between(typename L::Options options) {
  return [options](Network& net) {
    net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1});
    net.add<L>(options);
    net.add<Linear>({.features = 3});
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1});
  };
}

}  // namespace

TEST_CASE("ranks equal one rank") {
  const int ranks = GENERATE(2, 3);
  CHECK(difference(ranks, between<ReLU>({})) < 1e-12);
  CHECK(difference(ranks, between<Linear>({.features = 6})) < 1e-12);
  CHECK(difference(ranks, between<Conv2D>({.channels = 4, .groups = 2})) < 1e-12);
  CHECK(difference(ranks, between<Dropout>({.rate = 0.4})) < 1e-12);
  CHECK(difference(ranks, between<MaxPool2D>({})) < 1e-12);
  CHECK(difference(ranks, between<BatchNorm>({.global = true, .scale = 2})) < 1e-12);
  CHECK(difference(ranks, between<BatchNorm>({.global = true}), false) < 1e-12);  // inference
}

TEST_CASE("BatchNorm with local statistics differs between numbers of ranks") {
  CHECK(difference(2, between<BatchNorm>({})) > 1e-3);
}
