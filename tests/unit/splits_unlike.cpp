// Splits where the ranks' kernels are unlike: other layouts, as on unlike processors or with uneven
// parts, and Winograd, which large blocks get. CTest runs this for several instruction sets.
#include "catch.hpp"
#include "support/reserved.hpp"
#include "support/splits.hpp"

#include <set>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Back ends under which neighbours lay out x, y and w differently.
std::vector<std::string> unlike_layouts() {
  std::vector<std::string> all{"unlike gemm"};
  if (onednn_backend()->description().find("AVX-512") != std::string::npos)
    all.push_back("unlike jit:avx2");
  return all;
}

auto wide_between(std::int64_t channels, Conv2D::Options options) {
  return [=] {
    Network net({.c = 3, .h = 9, .w = 8});
    net.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1}, "first");
    net.add<Conv2D>(options, "it");
    net.add<ReLU>({}, "relu");
    net.add<Conv2D>({.channels = 16, .kernel = 2, .stride = 2, .pad = 1}, "then");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    return net;
  };
}

}  // namespace

TEST_CASE("Conv2D under every split equals one rank where neighbours have unlike layouts",
          "[isa]") {
  if (!has_onednn()) return;
  for (const std::string& backend : unlike_layouts()) {
    CAPTURE(backend);
    const StepOn on{.backend = backend, .dtype = DType::f32};
    check_all(wide_between(16, {.channels = 32, .kernel = 3, .pad = 1}),
              {.channel = 32, .input = 16, .height = 9, .width = 8}, 1e-4, on, {2, 3});
    check_all(wide_between(20, {.channels = 12, .kernel = 3, .stride = 2, .pad = 1, .bias = false}),
              {.channel = 12, .input = 20, .height = 5, .width = 4}, 1e-4, on, {2, 4});
  }
}

TEST_CASE("global pools and linear layers equal one rank where neighbours have unlike layouts",
          "[isa]") {
  if (!has_onednn()) return;
  for (const std::string& backend : unlike_layouts()) {
    CAPTURE(backend);
    const StepOn on{.backend = backend, .dtype = DType::f32};
    check_all(
        [] {
          Network net({.c = 3, .h = 6, .w = 5});
          net.add<Conv2D>({.channels = 20, .kernel = 3, .pad = 1}, "first");
          net.add<GlobalAvgPool>({}, "it");
          net.add<Linear>({.features = 5}, "fc");
          net.add<SoftmaxCrossEntropy>({}, "loss");
          return net;
        },
        {.channel = 20, .height = 6, .width = 5}, 1e-4, on, {2, 3, 4});
    check_all(between<Linear>({.features = 7}), {.channel = 7, .input = 8}, 1e-4, on, {2, 3, 4});
  }
}

TEST_CASE("layers under every split equal one rank where neighbours have unlike back ends",
          "[isa]") {
  if (!has_unlike_backends()) return;
  const bool fuse = GENERATE(false, true);
  CAPTURE(fuse);
  const StepOn on{.backend = unlike_backends, .dtype = DType::f32, .fuse = fuse};
  check_all(wide_between(16, {.channels = 20, .kernel = 3, .pad = 1}),
            {.channel = 20, .input = 16, .height = 9, .width = 8}, 1e-4, on, {2, 3});
  check_all(
      [] {
        Network net({.c = 3, .h = 9, .w = 8});
        net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "first");
        net.add<BatchNorm>({.global = true}, "it").add<ReLU>({}, "relu");
        net.add<Linear>({.features = 5}, "fc");
        net.add<SoftmaxCrossEntropy>({}, "loss");
        return net;
      },
      {.channel = 8, .height = 9, .width = 8}, 1e-4, on, {2, 3});
  check_all(between<MaxPool2D>({.window = 3, .stride = 2}), {.channel = 8, .height = 4, .width = 3},
            1e-4, on, {2, 3});
  check_all(between<Linear>({.features = 7}), {.channel = 7, .input = 8}, 1e-4, on, {2, 3});
}

TEST_CASE("layers are fused where all back ends fuse them") {
  if (over_device()) return;
  const auto build = [] {
    Network net({.c = 3, .h = 9, .w = 8});
    const Node x = net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "a").add<ReLU>();
    const Node y = x.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "b")
                       .add<BatchNorm>({.global = true}, "norm");
    net.join<Add>({y, x}, {}, "sum").add<ReLU>({}, "relu").add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  const auto absorbed_on = [&](int ranks, bool reserved) {
    std::set<std::string> names;
    Whole whole;
    std::mutex mutex;
    run_ranks(ranks, [&](World& world) {
      const StepOn o{.dtype = DType::f64, .fuse = true};
      const auto backend = reserved && world.rank() % 2 ? reserved_backend() : reference_backend();
      const PlacedNetwork placed = run_step(build(), o, world, whole, mutex, backend);
      const std::lock_guard lock(mutex);
      for (const Step& s : placed.steps())
        if (s.absorbed()) names.insert(text(s.name, " on rank ", world.rank()));
    });
    CHECK(difference(step_on(1, build, {}), whole) < 1e-9);
    return names;
  };
  using Names = std::set<std::string>;
  CHECK(absorbed_on(2, false) == Names{"relu1 on rank 0", "relu1 on rank 1", "relu on rank 0",
                                       "relu on rank 1", "sum on rank 0", "sum on rank 1"});
  CHECK(absorbed_on(2, true) == Names{"relu1 on rank 0", "relu1 on rank 1"});
  CHECK(absorbed_on(3, true).size() == 3);
}

// The same on like ranks, whose parts of 20 or 12 channels are uneven: that is enough on processors
// with 4 or 8 numbers to a register.
TEST_CASE("layers cut into uneven channels equal one rank on any instruction set", "[isa]") {
  const StepOn on{.backend = "auto", .dtype = DType::f32};
  for (const std::int64_t channels : {12, 20, 40})
    for (const std::int64_t stride : {1, 2}) {
      CAPTURE(channels, stride);
      const int rows = stride == 1 ? 9 : 5, columns = stride == 1 ? 8 : 4;
      check_all(
          wide_between(channels, {.channels = channels, .kernel = 3, .stride = stride, .pad = 1}),
          {.channel = int(channels), .input = int(channels), .height = rows, .width = columns},
          1e-4, on, {3});
    }
}

// Large enough for Winograd on AVX-512: a block at the border of the image has padding above, but
// not below. One thread, as several ranks of a machine have. No ReLU: a value that rounding moves
// across zero would change a gradient, in which most terms cancel, by a hundredth.
TEST_CASE("Conv2D under every split equals one rank at sizes where Winograd is chosen") {
  if (!has_onednn()) return;
  const std::string with = onednn_backend()->description();  // oneDNN 3 has none for training
  if (!with.starts_with("oneDNN 2") || with.find("AVX-512") == std::string::npos) {
    WARN("no Winograd of oneDNN's on this processor: nothing to test");
    return;
  }
  const auto build = [] {
    Network net({.c = 16, .h = 34, .w = 16});
    net.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "first");
    net.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "it");
    net.add<GlobalAvgPool>({}, "pool");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  const StepOn on{.backend = "auto", .dtype = DType::f32, .batch = 34, .threads = 1};
  const int before = threads();
  set_threads(1);
  const PlacedNetwork net = build().place({.batch = on.batch, .backend = onednn_backend()});
  bool winograd = false;
  for (const Step& s : net.steps())
    winograd |= s.placement.algorithm.find("wino") != std::string::npos;
  CHECK(winograd);
  set_threads(before);
  check_all(build, {.channel = 16, .input = 16, .height = 34, .width = 16}, 1e-3, on, {2, 3},
            Axis::height | Axis::width | Axis::batch);
}

// Reorders stand at other places then, so the ranks number their steps differently.
TEST_CASE("a sharded optimizer works where ranks have other steps") {
  if (!has_onednn()) return;
  const auto weights_after_a_step = [](int ranks, bool shard) {
    std::vector<double> weights;
    run_ranks(ranks, [&](World& world) {
      Network layers({.c = 3, .h = 8, .w = 8});
      layers.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "first");
      layers.add<LRN>({}, "lrn").add<Conv2D>({.channels = 32, .kernel = 3, .pad = 1}, "second");
      layers.add<Linear>({.features = 5}, "fc");
      layers.add<SoftmaxCrossEntropy>({}, "loss");
      const std::string only = world.rank() % 2 ? "gemm" : "";
      PlacedNetwork net = layers.place({.batch = 6,
                                        .backend = onednn_backend({.only = only}),
                                        .ranks = world,
                                        .bucket_mb = 0,
                                        .first_bucket_mb = 0,
                                        .shard_optimizer = shard});
      net.initialize(3);
      const auto steps = world.comm().all_gather_value(std::int64_t(net.steps().size()));
      if (ranks > 1) check(steps[0] != steps[1], "the ranks have the same steps");
      const Optimizer optimizer = SGD{.rate = 0.1, .momentum = 0.9};
      const Tensor states = optimizer.attach(net);
      const Random random(1);
      const std::int64_t sample = layers.sample().sample(), first = net.rows().begin * sample;
      for (std::int64_t i = 0; i < net.x().shape.size(); ++i)
        net.x().as<float>()[i] = float(random.normal(std::uint64_t(first + i)));
      const Tensor labels({net.rows().size, 1, 1, 1}, DType::i32);
      for (std::int64_t i = 0; i < net.rows().size; ++i)
        labels.as<std::int32_t>()[i] = std::int32_t((net.rows().begin + i) % 5);
      Stream stream;
      Context context{stream};
      context.targets = labels;
      net.forward(context);
      net.backward(context);
      optimizer.update(net, stream, 0.1, 1);
      if (world.rank() > 0) return;
      for (const auto& n : net.parameters()) {
        const Tensor plain(n.parameter->form.shape, DType::f32);
        net.placing().backend->copy(n.parameter->value, plain);
        for (const float v : plain.elements<float>()) weights.push_back(v);
      }
    });
    return weights;
  };
  const std::vector<double> one = weights_after_a_step(1, false);
  for (const bool shard : {false, true}) {
    CAPTURE(shard);
    const std::vector<double> two = weights_after_a_step(2, shard);
    REQUIRE(two.size() == one.size());
    for (std::size_t i = 0; i < one.size(); ++i)
      if (std::abs(two[i] - one[i]) > 1e-5) FAIL_CHECK(i << ": " << two[i] << " and " << one[i]);
  }
}
