// Whole networks under random legal plans: five steps of training give the losses of one rank.
#include "catch.hpp"

#include <lamina/base/random.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/lamina.hpp>

using namespace lamina;

namespace {

constexpr int steps = 5;

/// The losses of some steps; the same data on any number of ranks.
std::vector<double> train(Network net, const World& world, std::vector<Split> splits,
                          const std::string& backend, DType dtype, std::int64_t batch,
                          std::vector<bool> recompute = {}) {
  const Shape sample = net.sample();
  const int classes = int(net.input_shapes(net.graph().back(), 1)[0].c);
  Trainer trainer(net, world, SGD{.rate = 0.02, .momentum = 0.9},
                  {.batch = batch,
                   .backend = backend,
                   .dtype = dtype,
                   .splits = std::move(splits),
                   .recompute = std::move(recompute),
                   .bucket_mb = 0.01,
                   .first_bucket_mb = 0.001});
  const auto data = synthetic({.limit = batch * steps,
                               .channels = int(sample.c),
                               .height = int(sample.h),
                               .width = int(sample.w),
                               .classes = classes,
                               .seed = 3});
  std::vector<double> losses;
  FitOptions fit{.epochs = 1};
  fit.on_step = [&](const StepResult& r) { losses.push_back(r.loss); };
  for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
  return losses;
}

/// One of the legal splits of each layer, drawn evenly; half of the layers keep the plan `data`, so
/// that not every edge is a reshard.
std::vector<Split> random_plan(const Network& net, int ranks, std::int64_t batch,
                               const Random& random, std::uint64_t& draw) {
  const auto pick = [&](std::size_t n) {
    return std::min(n - 1, std::size_t(random.uniform(draw++) * double(n)));
  };
  std::vector<Split> plan;
  for (const auto& v : net.graph()) {
    const Split data{.batch = ranks};
    plan.push_back(data);
    if (!v.layer || pick(2) == 0) continue;
    const std::vector<Shape> xs = net.input_shapes(v, batch);
    std::vector<Split> legal;
    for (const int ways : {1, ranks / 2, ranks - 1, ranks})
      for (int b = 1; b <= ways; ++b)
        for (int k = 1; b * k <= ways; ++k)
          for (int c = 1; b * k * c <= ways; ++c)
            for (int h = 1; b * k * c * h <= ways; ++h) {
              if (ways % (b * k * c * h) != 0) continue;
              const Split split{b, k, c, h, ways / (b * k * c * h)};
              if (why_illegal(*v.layer, xs, split, ranks).empty()) legal.push_back(split);
            }
    if (!legal.empty()) plan.back() = legal[pick(legal.size())];
  }
  return plan;
}

std::string describe(const Network& net, const std::vector<Split>& plan) {
  std::string s;
  for (std::size_t i = 1; i < plan.size(); ++i)
    append(s, text(net.graph()[i].name, '=', plan[i], '\n'));
  return s;
}

struct Case {
  const char* name;
  Network (*make)();
  std::int64_t batch;
  int plans;
  std::string backend = "reference";
  DType dtype = DType::f64;
  double tolerance = 1e-8;
};

/// AlexNet's and VGG-11's layers, a sixteenth as wide, on images so small that nothing is left to
/// average in front of the classifier.
Network thin_alexnet() {
  Network net({.c = 3, .h = 63, .w = 63});
  const auto conv = [&](Conv2D::Options o) { net.add<Conv2D>(o), net.add<ReLU>(); };
  const auto pool = [&] { net.add<MaxPool2D>({.window = 3, .stride = 2}); };
  conv({.channels = 4, .kernel = 11, .stride = 4, .pad = 2}), pool();
  conv({.channels = 12, .kernel = 5, .pad = 2}), pool();
  conv({.channels = 24, .kernel = 3, .pad = 1});
  conv({.channels = 16, .kernel = 3, .pad = 1});
  conv({.channels = 16, .kernel = 3, .pad = 1}), pool();
  for (int i = 0; i < 2; ++i) {
    net.add<Dropout>({.rate = 0.5});
    net.add<Linear>({.features = 256}), net.add<ReLU>();
  }
  net.add<Linear>({.features = 10});
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}
Network thin_vgg11() {
  Network net({.c = 3, .h = 32, .w = 32});
  std::int64_t channels = 4;
  for (const int count : {1, 1, 2, 2, 2}) {
    for (int i = 0; i < count; ++i) {
      net.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1, .he_normal = true});
      net.add<ReLU>();
    }
    net.add<MaxPool2D>({.window = 2});
    channels = std::min<std::int64_t>(2 * channels, 32);
  }
  for (int i = 0; i < 2; ++i) {
    net.add<Linear>({.features = 256}), net.add<ReLU>();
    net.add<Dropout>({.rate = 0.5});
  }
  net.add<Linear>({.features = 10});
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}
Network small_resnet20() {
  return resnet20({.input = {.c = 3, .h = 16, .w = 16}, .global_norm = true});
}
Network plain_lenet() { return lenet({}); }

void check_plans(const Case& c) {
  const Random random(11, key_of(c.name));
  std::uint64_t draw = 0;
  std::vector<double> alone;
  run_ranks(1,
            [&](World& world) { alone = train(c.make(), world, {}, c.backend, c.dtype, c.batch); });
  REQUIRE(alone.size() == steps);
  CHECK(alone.front() != alone.back());
  for (int i = 0; i < c.plans; ++i) {
    const int ranks = 2 + i % 7;
    const Network net = c.make();
    const auto plan = random_plan(net, ranks, c.batch, random, draw);
    std::vector<bool> recompute(plan.size());  // of every second plan half of the layers
    for (std::size_t v = 0; i % 2 == 1 && v < plan.size(); ++v)
      recompute[v] = random.uniform(draw++) < 0.5;
    INFO(c.name << ", plan " << i << " on " << ranks << " ranks:\n" << describe(net, plan));
    std::vector<double> losses;
    run_ranks(ranks, [&](World& world) {
      auto mine = train(c.make(), world, plan, c.backend, c.dtype, c.batch, recompute);
      if (world.rank() == ranks - 1) losses = std::move(mine);
    });
    REQUIRE(losses.size() == alone.size());
    for (int s = 0; s < steps; ++s) {
      INFO("step " << s);
      CHECK(std::abs(losses[std::size_t(s)] - alone[std::size_t(s)]) <
            c.tolerance * std::abs(alone[std::size_t(s)]));
    }
  }
}

}  // namespace

TEST_CASE("LeNet under random plans trains as on one rank") {
  check_plans({"lenet", plain_lenet, 9, 80});
}
TEST_CASE("a thin AlexNet under random plans trains as on one rank") {
  check_plans({"alexnet", thin_alexnet, 9, 50});
}
TEST_CASE("ResNet-20 under random plans trains as on one rank") {
  check_plans({"resnet20", small_resnet20, 9, 40});
}
TEST_CASE("a thin VGG-11 under random plans trains as on one rank") {
  check_plans({"vgg11", thin_vgg11, 9, 50});
}
TEST_CASE("LeNet under random plans trains as on one rank, with oneDNN") {
  if (!has_onednn()) return;
  check_plans({"lenet", plain_lenet, 9, 20, "onednn", DType::f32, 2e-4});
}
