// Work, parameters and messages of every layer against counts by hand.
#include "layers.hpp"

using namespace lamina;

namespace {

template <class L>
Cost cost_of(typename L::Options options, std::vector<Shape> xs, Split split = {},
             DType t = DType::f32) {
  return L(options).cost(xs, split, t);
}

void check_work(const Work& w, double flops, double bytes) {
  CHECK(w.flops == flops);
  CHECK(w.bytes == bytes);
}

constexpr Shape x{4, 6, 8, 10};  // 1920 elements
constexpr double n = 4 * 6 * 8 * 10;

}  // namespace

TEST_CASE("cost of Conv2D") {
  // y is 4x9x8x10 = 2880; each element takes 3x3x6 multiplications and additions.
  const Cost c = cost_of<Conv2D>({.channels = 9, .kernel = 3, .pad = 1}, {x});
  for (const Work& w : {c.forward, c.input_grad, c.weight_grad})
    check_work(w, 2 * 2880 * 54, 4 * (1920 + 2880 + 9 * 54));
  CHECK(c.parameters == 9 * 54 + 9);
  REQUIRE(c.messages.size() == 1);
  CHECK(c.messages[0].op == Collective::all_reduce);
  CHECK(c.messages[0].pass == Pass::weight_grad);
  CHECK(c.messages[0].bytes == 4 * (9 * 54 + 9));
  CHECK(c.messages[0].ranks == 1);
  CHECK(c.messages[0].hidden);
}

TEST_CASE("cost of a grouped, strided Conv2D without bias, in f64") {
  const Cost c = cost_of<Conv2D>(
      {.channels = 4, .kernel = 3, .stride = 2, .pad = 1, .groups = 2, .bias = false}, {x}, {},
      DType::f64);
  check_work(c.forward, 2 * (4 * 4 * 4 * 5) * 27, 8 * (1920 + 320 + 4 * 27));
  CHECK(c.parameters == 108);
}

TEST_CASE("a split of the samples divides the work and not the parameters") {
  const Cost c = cost_of<Conv2D>({.channels = 9, .kernel = 3, .pad = 1}, {x}, {.batch = 3});
  // The largest part of 4 samples over 3 ranks is 2.
  check_work(c.forward, 2 * 1440 * 54, 4 * (960 + 1440 + 486));
  CHECK(c.parameters == 495);
  CHECK(c.messages[0].ranks == 3);
  const Cost l = cost_of<Linear>({.features = 7}, {x}, {.batch = 2});
  check_work(l.weight_grad, 2 * 2 * 480 * 7, 4 * (960 + 480 * 7 + 14));
  CHECK(l.parameters == 481 * 7);
  CHECK(l.messages[0].ranks == 2);
}

TEST_CASE("cost of Linear") {
  const Cost c = cost_of<Linear>({.features = 7}, {x});
  for (const Work& w : {c.forward, c.input_grad, c.weight_grad})
    check_work(w, 2 * 4 * 480 * 7, 4 * (1920 + 480 * 7 + 28));
  CHECK(c.parameters == 481 * 7);
  CHECK(cost_of<Linear>({.features = 7, .bias = false}, {x}).parameters == 480 * 7);
}

TEST_CASE("cost of BatchNorm") {
  const Cost local = cost_of<BatchNorm>({}, {x}, {.batch = 2});
  check_work(local.forward, 7 * n / 2, 3 * 4 * n / 2);
  check_work(local.input_grad, 7 * n / 2, 3 * 4 * n / 2);
  check_work(local.weight_grad, 4 * n / 2, 2 * 4 * n / 2);
  CHECK(local.parameters == 12);
  CHECK(local.messages.size() == 1);
  const Cost global = cost_of<BatchNorm>({.global = true, .affine = false}, {x}, {.batch = 2});
  CHECK(global.parameters == 0);
  REQUIRE(global.messages.size() == 2);
  for (const Message& m : global.messages) {
    CHECK(m.bytes == 12 * 8);
    CHECK(m.ranks == 2);
    CHECK_FALSE(m.hidden);
  }
}

TEST_CASE("cost of layers without parameters") {
  const auto check_both = [](const Cost& c, double flops, double bytes, double back_flops,
                             double back_bytes) {
    check_work(c.forward, flops, 4 * bytes);
    check_work(c.input_grad, back_flops, 4 * back_bytes);
    check_work(c.weight_grad, 0, 0);
    CHECK(c.parameters == 0);
    CHECK(c.messages.empty());
  };
  check_both(cost_of<ReLU>({}, {x}), n, 2 * n, n, 3 * n);
  check_both(cost_of<LeakyReLU>({}, {x}), n, 2 * n, n, 3 * n);
  check_both(cost_of<Sigmoid>({}, {x}), 4 * n, 2 * n, 3 * n, 3 * n);
  check_both(cost_of<Tanh>({}, {x}), 5 * n, 2 * n, 3 * n, 3 * n);
  check_both(cost_of<Softmax>({}, {x}), 5 * n, 2 * n, 4 * n, 3 * n);
  check_both(cost_of<LRN>({.size = 5}, {x}), 10 * n, 2 * n, 19 * n, 3 * n);
  check_both(cost_of<Dropout>({}, {x}), n, 2 * n, n, 2 * n);
  check_both(cost_of<Flatten>({}, {x}), 0, 0, 0, 0);
  check_both(cost_of<Add>({}, {x, x, x}), 2 * n, 4 * n, 0, 0);
  check_both(cost_of<Concat>({}, {x, x}), 0, 4 * n, 0, 4 * n);
  check_both(cost_of<PadChannels>({.channels = 12}, {x}), 0, 3 * n, 0, 2 * n);
  // 3x3 windows, stride 2: y is 4x6x4x5 = 480.
  check_both(cost_of<MaxPool2D>({.window = 3, .stride = 2, .pad = 1}, {x}), 9 * 480, n + 480, 480,
             n + 2 * 480);
  check_both(cost_of<AvgPool2D>({.window = 2}, {x}), n, n + 480, n, n + 480);
  check_both(cost_of<AvgPool2D>({.outputs = {8, 10}}, {x}), 0, 0, 0, 0);
  check_both(cost_of<GlobalAvgPool>({}, {x}), n, n + 24, n, n + 24);
  check_both(Reorder({x, DType::f32, {}}).cost(std::vector{x}, {}, DType::f32), 0, 2 * n, 0, 2 * n);
}

TEST_CASE("cost of SoftmaxCrossEntropy") {
  const Cost c = cost_of<SoftmaxCrossEntropy>({}, {{8, 10, 1, 1}}, {.batch = 4});
  check_work(c.forward, 5 * 20, 2 * 4 * 20);
  check_work(c.input_grad, 2 * 20, 2 * 4 * 20);
  REQUIRE(c.messages.size() == 1);
  CHECK(c.messages[0].bytes == 24);
  CHECK(c.messages[0].ranks == 4);
}

TEST_CASE("work of the update rules") {
  check_work(update_work({}, 10, DType::f32), 20, 4 * 3 * 10);
  check_work(update_work({.momentum = 0.9}, 10, DType::f32), 40, 4 * 5 * 10);
  check_work(update_work({.momentum = 0.9, .nesterov = true}, 10, DType::f32), 60, 4 * 5 * 10);
  check_work(update_work({.kind = UpdateRule::Kind::adam}, 10, DType::f32), 120, 4 * 7 * 10);
}
