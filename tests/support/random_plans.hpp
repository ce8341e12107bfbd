// What the tests of whole networks under random plans share: the networks, small enough for f64,
// the plans, and the losses of five steps.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/lamina.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace lamina::test {

/// The library's models, thin or on a small image.
inline Network thin(std::string_view name) {
  ModelOptions o{.classes = 10};
  if (name == "alexnet") o.width = 1.0 / 16;
  if (name == "vgg11") o.width = 1.0 / 32;
  if (name == "resnet20") o.input = {.c = 3, .h = 16, .w = 16}, o.global_norm = true;
  return make_model(name, o);
}

constexpr int random_plan_steps = 5;

/// The losses of five steps; the same data on any number of ranks. Of `options` the batch, the back
/// end, the dtype and the plan count.
inline std::vector<double> five_losses(const Network& net, const World& world,
                                       TrainerOptions options) {
  const Shape sample = net.sample();
  const auto data = synthetic({.limit = options.batch * random_plan_steps,
                               .channels = int(sample.c),
                               .height = int(sample.h),
                               .width = int(sample.w),
                               .classes = int(net.input_shapes(net.graph().back(), 1)[0].c),
                               .seed = 3});
  options.bucket_mb = 0.01, options.first_bucket_mb = 0.001;
  Trainer trainer(net, world, SGD{.rate = 0.02, .momentum = 0.9}, options);
  std::vector<double> losses;
  FitOptions fit{.epochs = 1};
  fit.on_step = [&](const StepResult& r) { losses.push_back(r.loss); };
  for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
  return losses;
}

/// One of the legal splits of each layer, drawn evenly; half of the layers keep the plan `data`, so
/// that not every edge is a reshard.
inline std::vector<Split> random_plan(const Network& net, int ranks, std::int64_t batch,
                                      const Random& random, std::uint64_t& draw) {
  const auto pick = [&](std::size_t n) {
    return std::min(n - 1, std::size_t(random.uniform(draw++) * double(n)));
  };
  std::vector<Split> plan;
  for (const auto& v : net.graph()) {
    plan.push_back(input_split(batch, ranks));
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

inline std::string describe(const Network& net, const std::vector<Split>& plan) {
  std::string s;
  for (std::size_t i = 1; i < plan.size(); ++i)
    append(s, text(net.graph()[i].name, '=', plan[i], '\n'));
  return s;
}

}  // namespace lamina::test
