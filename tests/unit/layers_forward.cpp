// Values of every layer against the formula in its header, written out naively.
#include "layers.hpp"
#include "support/peek.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr Shape sample{.c = 4, .h = 5, .w = 6};

/// A network of the one layer.
template <class L>
struct One {
  Run run;

  explicit One(typename L::Options options, Shape s = sample, bool training = false)
      : run(make(options, s), 3, training) {
    run();
  }
  static Network make(typename L::Options options, Shape s) {
    Network n(s);
    n.add<L>(options, "layer");
    return n;
  }
  Shape x() const { return run.net.x().shape; }
  Shape y() const { return run.net.y().shape; }
};

/// Each element of y equals expected(n, c, h, w).
template <class L, class F>
void compare(One<L>& one, F&& expected) {
  each(one.y(), [&](auto n, auto c, auto h, auto w, std::size_t i) {
    INFO(n << ' ' << c << ' ' << h << ' ' << w);
    REQUIRE(one.run.y()[i] == Approx(expected(n, c, h, w)).epsilon(1e-12).margin(1e-12));
  });
}

}  // namespace

TEST_CASE("Conv2D is the sum over its window and group") {
  const Conv2D::Options o =
      GENERATE(Conv2D::Options{.channels = 3, .kernel = 3, .pad = 1},
               Conv2D::Options{.channels = 6,
                               .kernel = {2, 3},
                               .stride = {2, 1},
                               .pad = {1, 0, 2, 3},
                               .dilation = {2, 1},
                               .groups = 2},
               Conv2D::Options{.channels = 4, .kernel = 1, .groups = 4, .bias = false});
  One<Conv2D> one(o);
  const auto w = one.run.value("layer.weight");
  const std::int64_t inputs = 4 / o.groups;
  const Shape filter{o.channels, inputs, o.kernel.h, o.kernel.w};
  REQUIRE(std::int64_t(w.size()) == filter.size());
  compare(one, [&](auto n, auto k, auto p, auto q) {
    double sum = o.bias ? one.run.value("layer.bias")[std::size_t(k)] : 0;
    const std::int64_t group = k / (o.channels / o.groups);
    for (std::int64_t c = 0; c < inputs; ++c)
      for (std::int64_t r = 0; r < o.kernel.h; ++r)
        for (std::int64_t s = 0; s < o.kernel.w; ++s)
          sum += at(w, filter, k, c, r, s) * at(one.run.x(), one.x(), n, group * inputs + c,
                                                p * o.stride.h + r * o.dilation.h - o.pad.top,
                                                q * o.stride.w + s * o.dilation.w - o.pad.left);
    return sum;
  });
}

TEST_CASE("Linear takes an image as its features") {
  One<Linear> one({.features = 7});
  CHECK(one.run.parameter("layer.weight").dims == std::vector<std::int64_t>{7, 120});
  const auto w = one.run.value("layer.weight"), b = one.run.value("layer.bias");
  compare(one, [&](auto n, auto k, auto, auto) {
    double sum = b[std::size_t(k)];
    for (std::size_t i = 0; i < 120; ++i)
      sum += w[std::size_t(k) * 120 + i] * one.run.x()[std::size_t(n) * 120 + i];
    return sum;
  });
}

TEST_CASE("weights start as the options say") {
  const auto deviation = [](std::span<const double> v) {
    double squares = 0;
    for (const double e : v) squares += e * e;
    return std::sqrt(squares / double(v.size()));
  };
  SECTION("uniform within 1/sqrt(inputs)") {
    One<Linear> one({.features = 50});
    const double bound = 1 / std::sqrt(120.0);
    for (const char* name : {"layer.weight", "layer.bias"})
      for (const double v : one.run.value(name)) REQUIRE(std::abs(v) <= bound);
    CHECK(deviation(one.run.value("layer.weight")) == Approx(bound / std::sqrt(3)).epsilon(0.05));
  }
  SECTION("normal") {
    One<Linear> one({.features = 50, .normal = 0.01});
    CHECK(deviation(one.run.value("layer.weight")) == Approx(0.01).epsilon(0.05));
    CHECK(deviation(one.run.value("layer.bias")) == 0);
  }
  SECTION("He's, by fan out") {
    One<Conv2D> one({.channels = 50, .kernel = 3, .he_normal = true});
    CHECK(deviation(one.run.value("layer.weight")) == Approx(std::sqrt(2.0 / 450)).epsilon(0.05));
    CHECK(deviation(one.run.value("layer.bias")) == 0);
  }
  SECTION("biases and batch norm do not decay") {
    CHECK(One<Linear>({.features = 5}).run.parameter("layer.weight").decay);
    CHECK_FALSE(One<Linear>({.features = 5}).run.parameter("layer.bias").decay);
    CHECK_FALSE(One<BatchNorm>({}).run.parameter("layer.weight").decay);
  }
}

TEST_CASE("activations are their formulas") {
  const auto check_unary = [](auto& one, auto f) {
    compare(one, [&](auto n, auto c, auto h, auto w) {
      return f(at(one.run.x(), one.x(), n, c, h, w));
    });
  };
  SECTION("ReLU") {
    One<ReLU> one({});
    check_unary(one, [](double x) { return x > 0 ? x : 0; });
  }
  SECTION("LeakyReLU") {
    One<LeakyReLU> one({.slope = 0.2});
    check_unary(one, [](double x) { return x > 0 ? x : 0.2 * x; });
  }
  SECTION("Sigmoid") {
    One<Sigmoid> one({});
    check_unary(one, [](double x) { return 1 / (1 + std::exp(-x)); });
  }
  SECTION("Tanh") {
    One<Tanh> one({});
    check_unary(one, [](double x) { return std::tanh(x); });
  }
}

TEST_CASE("MaxPool2D takes the largest inside the image") {
  const MaxPool2D::Options o = GENERATE(
      MaxPool2D::Options{}, MaxPool2D::Options{.window = 3, .stride = 2, .pad = 1},
      MaxPool2D::Options{.window = {3, 2}, .stride = {2, 3}, .pad = {1, 0, 0, 1}, .ceil = true});
  One<MaxPool2D> one(o);
  const Pair stride = o.stride == Pair(0) ? o.window : o.stride;
  compare(one, [&](auto n, auto c, auto p, auto q) {
    double most = -1e9;
    for (std::int64_t h = p * stride.h - o.pad.top, r = 0; r < o.window.h; ++r, ++h)
      for (std::int64_t w = q * stride.w - o.pad.left, s = 0; s < o.window.w; ++s, ++w)
        if (h >= 0 && h < one.x().h && w >= 0 && w < one.x().w)
          most = std::max(most, at(one.run.x(), one.x(), n, c, h, w));
    return most;
  });
}

TEST_CASE("AvgPool2D divides by the window, or by what it covers") {
  const bool count_padding = GENERATE(true, false);
  One<AvgPool2D> one({.window = 3, .stride = 2, .pad = 1, .count_padding = count_padding});
  CHECK(one.y() == Shape{3, 4, 3, 3});
  compare(one, [&](auto n, auto c, auto p, auto q) {
    double sum = 0, inside = 0;
    for (std::int64_t h = 2 * p - 1; h < 2 * p + 2; ++h)
      for (std::int64_t w = 2 * q - 1; w < 2 * q + 2; ++w) {
        sum += at(one.run.x(), one.x(), n, c, h, w);
        inside += h >= 0 && h < 5 && w >= 0 && w < 6;
      }
    return sum / (count_padding ? 9 : inside);
  });
}

TEST_CASE("AvgPool2D counts padding unless told otherwise, as PyTorch does") {
  One<AvgPool2D> one({.window = 3, .pad = 1}),
      counted({.window = 3, .pad = 1, .count_padding = true});
  CHECK(std::equal(one.run.y().begin(), one.run.y().end(), counted.run.y().begin()));
}

TEST_CASE("windows of AvgPool2D that ceil adds beyond the padding count no padding") {
  const auto shape = [](const AvgPool2D::Options& o, std::int64_t size) {
    const std::vector<Shape> xs = {{1, 1, size, size}};
    return AvgPool2D(o).output(xs);
  };
  CHECK_THROWS_WITH(shape({.window = 3, .stride = 2, .ceil = true}, 6),
                    ContainsSubstring("expected count_padding = false, or more pad"));
  CHECK_THROWS_AS(shape({.window = 3, .stride = 2, .pad = {0, 0, 1, 0}, .ceil = true}, 6), Error);
  CHECK(shape({.window = 3, .stride = 2, .ceil = true}, 7) == Shape{1, 1, 3, 3});
  CHECK(shape({.window = 3, .stride = 2, .pad = {0, 0, 1, 1}, .ceil = true}, 6) ==
        Shape{1, 1, 3, 3});
  CHECK(shape({.window = 3, .stride = 2, .ceil = true, .count_padding = false}, 6) ==
        Shape{1, 1, 3, 3});
  CHECK_THROWS_WITH(AvgPool2D({.window = 9, .outputs = 2}),
                    ContainsSubstring("expected one of the two"));
}

TEST_CASE("averages to a number of outputs") {
  SECTION("one: global") {
    One<GlobalAvgPool> one({});
    One<AvgPool2D> same({.outputs = 1});
    CHECK(one.y() == Shape{3, 4, 1, 1});
    compare(one, [&](auto n, auto c, auto, auto) {
      double sum = 0;
      for (std::int64_t h = 0; h < 5; ++h)
        for (std::int64_t w = 0; w < 6; ++w) sum += at(one.run.x(), one.x(), n, c, h, w);
      return sum / 30;
    });
    compare(same, [&](auto n, auto c, auto, auto) { return at(one.run.y(), one.y(), n, c, 0, 0); });
  }
  SECTION("a divisor") {
    One<AvgPool2D> one({.outputs = {5, 2}});
    CHECK(one.y() == Shape{3, 4, 5, 2});
    compare(one, [&](auto n, auto c, auto h, auto q) {
      double sum = 0;
      for (std::int64_t w = 3 * q; w < 3 * q + 3; ++w) sum += at(one.run.x(), one.x(), n, c, h, w);
      return sum / 3;
    });
  }
  SECTION("the input's: nothing runs") {
    One<AvgPool2D> one({.outputs = {5, 6}});
    CHECK(one.run.net.y().data == one.run.net.x().data);
  }
}

TEST_CASE("LRN divides by the neighbouring channels") {
  One<LRN> one({.size = 3, .alpha = 0.6, .beta = 0.5, .k = 1.5});
  compare(one, [&](auto n, auto c, auto h, auto w) {
    double squares = 0;
    for (auto d = std::max<std::int64_t>(c - 1, 0); d <= std::min<std::int64_t>(c + 1, 3); ++d)
      squares += std::pow(at(one.run.x(), one.x(), n, d, h, w), 2);
    return at(one.run.x(), one.x(), n, c, h, w) / std::sqrt(1.5 + 0.2 * squares);
  });
}

TEST_CASE("Softmax is over the channels") {
  One<Softmax> one({});
  compare(one, [&](auto n, auto c, auto h, auto w) {
    double sum = 0;
    for (std::int64_t d = 0; d < 4; ++d) sum += std::exp(at(one.run.x(), one.x(), n, d, h, w));
    return std::exp(at(one.run.x(), one.x(), n, c, h, w)) / sum;
  });
}

TEST_CASE("Flatten keeps the order and moves nothing") {
  One<Flatten> one({});
  CHECK(one.y() == Shape{3, 120, 1, 1});
  CHECK(one.run.net.y().data == one.run.net.x().data);
}

TEST_CASE("PadChannels puts zeros behind") {
  One<PadChannels> one({.channels = 6});
  compare(one, [&](auto n, auto c, auto h, auto w) {
    return c < 4 ? at(one.run.x(), one.x(), n, c, h, w) : 0;
  });
}

TEST_CASE("Add and Concat") {
  Network net(sample);
  const Node a = net.add<Tanh>({}, "a"), b = net.input().add<Sigmoid>({}, "b");
  bool add = false;
  SECTION("Add") {
    net.join<Add>({a, b, a});
    add = true;
  }
  SECTION("Concat") { net.join<Concat>({a, b}); }
  Run run(net, 2, false);
  const std::vector before(run.x().begin(), run.x().end());  // y may lie where x lay
  run();
  const Shape x = run.net.x().shape, y = run.net.y().shape;
  CHECK(y == Shape{2, add ? 4 : 8, 5, 6});
  each(y, [&](auto n, auto c, auto h, auto w, std::size_t i) {
    const double v = at(before, x, n, c % 4, h, w);
    const double sigmoid = 1 / (1 + std::exp(-v));
    const double expected = add ? 2 * std::tanh(v) + sigmoid : c < 4 ? std::tanh(v) : sigmoid;
    REQUIRE(run.y()[i] == Approx(expected).epsilon(1e-12));
  });
}

TEST_CASE("BatchNorm normalises by the batch in training and by the averages in inference") {
  Network net(sample);
  net.add<Conv2D>({.channels = 4}, "stem");  // so that there is something to train
  net.add<BatchNorm>({.epsilon = 1e-3, .momentum = 0.25}, "norm");
  net.add<Linear>({.features = 3});
  net.add<SoftmaxCrossEntropy>();
  Run run(net, 3);
  auto w = run.value("norm.weight"), b = run.value("norm.bias");
  w[1] = 2, b[1] = -0.5;
  const auto step_of = [&](std::string_view name) -> const Step& {
    for (const Step& s : run.net.steps())
      if (s.name == name) return s;
    throw Error("no such step");
  };
  const Step& norm = step_of("norm");
  const View x = peek(norm.buffers.x[0]);
  const std::int64_t count = 3 * 5 * 6;
  const auto moments = [&](std::int64_t c) {
    double mean = 0, var = 0;
    for (int pass = 0; pass < 2; ++pass)
      each(x.shape, [&](auto n, auto k, auto h, auto v, std::size_t) {
        if (k != c) return;
        const double e = at(x.elements<double>(), x.shape, n, k, h, v);
        pass == 0 ? mean += e / double(count) : var += (e - mean) * (e - mean) / double(count);
      });
    return std::pair(mean, var);
  };

  run.net.forward(run.context);
  run.stream.wait();
  const auto [mean, var] = moments(1);
  const View y = peek(norm.buffers.y);
  each(x.shape, [&](auto n, auto c, auto h, auto v, std::size_t i) {
    if (c != 1) return;
    const double e = at(x.elements<double>(), x.shape, n, c, h, v);
    REQUIRE(y.elements<double>()[i] ==
            Approx(2 * (e - mean) / std::sqrt(var + 1e-3) - 0.5).epsilon(1e-10).margin(1e-10));
  });
  const auto running_mean = run.value("norm.running_mean"),
             running_var = run.value("norm.running_var");
  CHECK(running_mean[1] == Approx(0.25 * mean).margin(1e-12));
  CHECK(running_var[1] == Approx(0.75 + 0.25 * var * count / (count - 1)));  // unbiased

  running_mean[1] = 0.3, running_var[1] = 4;
  run.context.training = false;
  run();
  each(x.shape, [&](auto n, auto c, auto h, auto v, std::size_t i) {
    if (c != 1) return;
    const double e = at(x.elements<double>(), x.shape, n, c, h, v);
    REQUIRE(y.elements<double>()[i] ==
            Approx(2 * (e - 0.3) / std::sqrt(4 + 1e-3) - 0.5).epsilon(1e-10));
  });
  CHECK(running_mean[1] == 0.3);
}

TEST_CASE("Dropout is the identity in inference") {
  SECTION("in place") {
    Network net(sample);
    net.add<Conv2D>({.channels = 2}).add<Dropout>({.rate = 0.9});
    Run run(net, 2, false);
    run();
    CHECK(run.net.steps()[1].buffers.y.data == run.net.steps()[2].buffers.y.data);
    CHECK(std::count(run.y().begin(), run.y().end(), 0.0) == 0);
  }
  SECTION("from one buffer to another") {
    One<Dropout> one({.rate = 0.9});
    CHECK(one.run.net.x().data != one.run.net.y().data);
    CHECK(std::equal(one.run.x().begin(), one.run.x().end(), one.run.y().begin()));
  }
}

TEST_CASE("Dropout keeps 1 - rate, scaled up, by seed and step") {
  Network net({.c = 50, .h = 4, .w = 4});
  net.add<Conv2D>({.channels = 50}, "stem").add<Dropout>({.rate = 0.25}, "drop");
  Run run(net, 4);
  auto w = run.value("stem.weight"), b = run.value("stem.bias");
  std::fill(w.begin(), w.end(), 0), std::fill(b.begin(), b.end(), 3);  // x of dropout is 3
  const auto mask = [&] {
    run.net.forward(run.context);
    return std::vector(run.y().begin(), run.y().end());
  };
  const auto first = mask();
  for (const double v : first) REQUIRE((v == 0 || v == Approx(4)));
  CHECK(double(std::count(first.begin(), first.end(), 0.0)) == Approx(800).epsilon(0.1));
  CHECK(mask() == first);

  run.context.step = 1;
  CHECK(mask() != first);
  run.context.step = 0, run.context.seed = 1;
  CHECK(mask() != first);
}

TEST_CASE("two Dropout layers draw different masks") {
  Network net({.c = 100, .h = 2, .w = 2});
  const Node x = net.add<Conv2D>({.channels = 100}, "stem");
  net.join<Concat>({x.add<Dropout>(), x.add<Dropout>()});
  Run run(net, 1);
  run.net.forward(run.context);
  CHECK_FALSE(std::equal(run.y().begin(), run.y().begin() + 400, run.y().begin() + 400));
}

TEST_CASE("SoftmaxCrossEntropy gives the mean loss and the hits") {
  const double smoothing = GENERATE(0.0, 0.1);
  Network net({.c = 8});
  net.add<SoftmaxCrossEntropy>({.label_smoothing = smoothing});
  Run run(net, 5, false, 8);
  const auto labels = peek(run.labels).elements<std::int32_t>();
  labels[4] = -1;  // does not count
  run();
  double loss = 0, top1 = 0, top5 = 0;
  for (std::size_t n = 0; n < 4; ++n) {
    const auto x = run.x().subspan(n * 8, 8);
    const auto label = std::size_t(labels[n]);
    double sum = 0, larger = 0;
    for (const double v : x) sum += std::exp(v), larger += v > x[label];
    for (std::size_t c = 0; c < 8; ++c)
      loss -= (smoothing / 8 + (c == label ? 1 - smoothing : 0)) * (x[c] - std::log(sum)) / 4;
    top1 += larger < 1, top5 += larger < 5;
  }
  CHECK(run.y()[0] == Approx(loss));
  CHECK(run.y()[1] == top1);
  CHECK(run.y()[2] == top5);
  CHECK(top5 > top1);  // both were told apart
}

TEST_CASE("SoftmaxCrossEntropy in training is complete when backward returns") {
  Network net({.c = 6});
  net.add<Linear>({.features = 3}, "fc");
  net.add<SoftmaxCrossEntropy>();
  Run run(net, 4);
  const double trained = run();
  run.context.training = false;
  CHECK(run() == trained);
  run.context.targets = {};
  CHECK(error_of([&] { run(); }) == "expected 4 labels, got 0");
}
