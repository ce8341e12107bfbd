// Work, parameters and messages of every layer against counts by hand.
#include "layers.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

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
  CHECK(c.messages[0].axes == (Axis::batch | Axis::height | Axis::width));
}

TEST_CASE("cost of a grouped, strided Conv2D without bias, in f64") {
  const Cost c = cost_of<Conv2D>(
      {.channels = 4, .kernel = 3, .stride = 2, .pad = 1, .groups = 2, .bias = false}, {x}, {},
      DType::f64);
  check_work(c.forward, 2 * (4 * 4 * 4 * 5) * 27, 8 * (1920 + 320 + 4 * 27));
  CHECK(c.parameters == 108);
}

TEST_CASE("cost of Conv2D with dilation, groups and uneven windows") {
  // The window is 5x7 wide, but only its 3x3 taps count: y is 4x5x4x4 = 320.
  const Cost dilated = cost_of<Conv2D>({.channels = 5, .kernel = 3, .dilation = {2, 3}}, {x});
  check_work(dilated.weight_grad, 2 * 320 * 54, 4 * (1920 + 320 + 5 * 54));
  // Each of 12 channels sees one of x: 15 taps, y is 4x12x6x6 = 1728.
  const Cost depthwise = cost_of<Conv2D>({.channels = 12, .kernel = {3, 5}, .groups = 6}, {x});
  check_work(depthwise.input_grad, 2 * 1728 * 15, 4 * (1920 + 1728 + 12 * 15));
  CHECK(depthwise.parameters == 12 * 15 + 12);
  // Nine rows by 15 columns with the padding, of which no byte moves: y is 4x9x4x4 = 576.
  const Cost uneven = cost_of<Conv2D>(
      {.channels = 9, .kernel = {3, 4}, .stride = {2, 3}, .pad = {1, 2, 0, 3}}, {x});
  check_work(uneven.forward, 2 * 576 * 72, 4 * (1920 + 576 + 9 * 72));
}

TEST_CASE("cost of Conv2D knows which multiplications are with zeros around x") {
  const auto check_padding = [](const Conv2D::Options& o, Shape in) {
    const std::array xs{in};
    const Shape y = Conv2D(o).output(xs);
    const auto taps = [](std::int64_t outputs, std::int64_t extent, std::int64_t window,
                         std::int64_t stride, std::int64_t pad, std::int64_t dilation) {
      std::int64_t inside = 0;
      for (std::int64_t i = 0; i < outputs; ++i)
        for (std::int64_t k = 0; k < window; ++k) {
          const std::int64_t at = i * stride - pad + k * dilation;
          inside += 0 <= at && at < extent;
        }
      return double(inside) / double(outputs * window);
    };
    const double inside = taps(y.h, in.h, o.kernel.h, o.stride.h, o.pad.top, o.dilation.h) *
                          taps(y.w, in.w, o.kernel.w, o.stride.w, o.pad.left, o.dilation.w);
    const Cost c = Conv2D(o).cost(xs, {}, DType::f32);
    for (const Work& w : {c.forward, c.recompute, c.input_grad, c.weight_grad})
      CHECK(w.padding == Approx(w.flops * (1 - inside)));
  };
  check_padding({.channels = 9, .kernel = 3}, x);
  CHECK(cost_of<Conv2D>({.channels = 9, .kernel = 3}, {x}).forward.padding == 0);
  check_padding({.channels = 9, .kernel = 3, .pad = 1}, x);
  check_padding({.channels = 9, .kernel = 7, .stride = 2, .pad = 3}, {2, 3, 31, 30});
  check_padding({.channels = 9, .kernel = {3, 4}, .stride = {2, 3}, .pad = {1, 2, 0, 3}}, x);
  check_padding({.channels = 5, .kernel = 3, .pad = {4, 5, 2, 7}, .dilation = {2, 3}}, x);
  check_padding({.channels = 5, .kernel = 5, .pad = 4}, {1, 6, 2, 2});  // some taps never meet x
}

TEST_CASE("a split of the samples divides the work and not the parameters") {
  const Cost c = cost_of<Conv2D>({.channels = 9, .kernel = 3, .pad = 1}, {x}, {.batch = 3});
  // The largest part of 4 samples over 3 ranks is 2.
  check_work(c.forward, 2 * 1440 * 54, 4 * (960 + 1440 + 486));
  CHECK(c.parameters == 495);
  CHECK(Split{.batch = 3}.ways(c.messages[0].axes) == 3);
  const Cost l = cost_of<Linear>({.features = 7}, {x}, {.batch = 2});
  check_work(l.weight_grad, 2 * 2 * 480 * 7, 4 * (960 + 480 * 7 + 14));
  CHECK(l.parameters == 481 * 7);
  CHECK(Split{.batch = 2}.ways(l.messages[0].axes) == 2);
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
    CHECK(m.axes == (Axis::batch | Axis::height | Axis::width));
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
  CHECK(c.messages[0].bytes == 40);
  CHECK(c.messages[0].axes == Axis::batch);
}

namespace {

/// One layer of every type, and its inputs for a batch.
struct Every {
  std::unique_ptr<Layer> layer;
  std::function<std::vector<Shape>(std::int64_t batch)> inputs;
};

std::vector<Every> every_layer() {
  std::vector<Every> all;
  const auto one = [](Shape shape) {
    return [shape](std::int64_t batch) {
      Shape s = shape;
      s.n = batch;
      return std::vector{s};
    };
  };
  const auto two = [](std::int64_t batch) { return std::vector<Shape>(2, {batch, 6, 8, 10}); };
  const auto add = [&]<class L>(std::type_identity<L>, typename L::Options o) {
    all.push_back({std::make_unique<L>(o), one(x)});
  };
  add(std::type_identity<AvgPool2D>(), {.window = 2});
  add(std::type_identity<BatchNorm>(), {.global = true});
  add(std::type_identity<Conv2D>(), {.channels = 9, .kernel = 3, .pad = 1, .groups = 3});
  add(std::type_identity<Dropout>(), {});
  add(std::type_identity<Flatten>(), {});
  add(std::type_identity<GlobalAvgPool>(), {});
  add(std::type_identity<LRN>(), {.size = 3});
  add(std::type_identity<LeakyReLU>(), {});
  add(std::type_identity<Linear>(), {.features = 7});
  add(std::type_identity<MaxPool2D>(), {.window = 3, .stride = 2});
  add(std::type_identity<PadChannels>(), {.channels = 8});
  add(std::type_identity<ReLU>(), {});
  add(std::type_identity<Sigmoid>(), {});
  add(std::type_identity<Softmax>(), {});
  add(std::type_identity<Tanh>(), {});
  all.push_back({std::make_unique<Add>(Add::Options()), two});
  all.push_back({std::make_unique<Concat>(Concat::Options()), two});
  all.push_back({std::make_unique<Reorder>(Form{x, DType::f32, {}}), one(x)});
  all.push_back(
      {std::make_unique<SoftmaxCrossEntropy>(SoftmaxCrossEntropy::Options()), one({1, 10, 1, 1})});
  return all;
}

/// The classes of the headers in include/lamina/layers that are layers.
std::set<std::string> types_in_headers() {
  namespace fs = std::filesystem;
  std::set<std::string> types;
  const fs::path root = fs::path(LAMINA_SOURCE) / "include/lamina/layers";
  for (const auto& header : fs::directory_iterator(root)) {
    std::ifstream in(header.path());
    for (std::string line; std::getline(in, line);)
      if (const auto at = line.find(" final : public ");
          line.starts_with("class ") && at < line.size())
        types.insert(line.substr(6, at - 6));
  }
  return types;
}

}  // namespace

TEST_CASE("no layer's cost is left out here") {
  std::set<std::string> here;
  for (const Every& e : every_layer()) here.insert(std::string(e.layer->type()));
  here.insert("Reshard");  // what it moves is no matter of samples: see splits_reshard.cpp
  CHECK(here == types_in_headers());
}

TEST_CASE("of an uneven split every layer states the largest part, its parameters whole") {
  for (const Every& e : every_layer()) {
    INFO(e.layer->type());
    const Cost three = e.layer->cost(e.inputs(3), {}, DType::f32);
    const Cost part = e.layer->cost(e.inputs(10), {.batch = 4}, DType::f32);  // 3, 3, 2, 2
    check_work(part.forward, three.forward.flops, three.forward.bytes);
    check_work(part.input_grad, three.input_grad.flops, three.input_grad.bytes);
    check_work(part.weight_grad, three.weight_grad.flops, three.weight_grad.bytes);
    CHECK(part.parameters == three.parameters);
    REQUIRE(part.messages.size() == three.messages.size());
    for (std::size_t i = 0; i < part.messages.size(); ++i) {
      CHECK(contains(part.messages[i].axes, Axis::batch));
      CHECK(part.messages[i].axes == three.messages[i].axes);
      CHECK(part.messages[i].bytes == three.messages[i].bytes);
    }
  }
}

TEST_CASE("in f64 every layer moves twice the bytes and computes as much") {
  for (const Every& e : every_layer()) {
    INFO(e.layer->type());
    const Cost f32 = e.layer->cost(e.inputs(3), {}, DType::f32);
    const Cost f64 = e.layer->cost(e.inputs(3), {}, DType::f64);
    check_work(f64.forward, f32.forward.flops, 2 * f32.forward.bytes);
    check_work(f64.input_grad, f32.input_grad.flops, 2 * f32.input_grad.bytes);
    check_work(f64.weight_grad, f32.weight_grad.flops, 2 * f32.weight_grad.bytes);
    CHECK(f64.parameters == f32.parameters);
    REQUIRE(f64.messages.size() == f32.messages.size());
    for (std::size_t i = 0; i < f64.messages.size(); ++i) {
      const Message &m = f64.messages[i], &n = f32.messages[i];
      // Statistics and losses are f64 in any case.
      CHECK(m.bytes == (m.pass == Pass::weight_grad ? 2 * n.bytes : n.bytes));
    }
  }
}

TEST_CASE("messages of two and of four ranks") {
  const int ranks = GENERATE(2, 4);
  const Split split{.batch = ranks};
  struct Expected {
    Pass pass;
    double bytes;
  };
  const auto check_messages = [&](const Cost& c, const std::vector<Expected>& expected) {
    REQUIRE(c.messages.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(c.messages[i].op == Collective::all_reduce);
      CHECK(c.messages[i].pass == expected[i].pass);
      CHECK(c.messages[i].bytes == expected[i].bytes);
      CHECK(split.ways(c.messages[i].axes) == ranks);
    }
  };
  const Expected sums[] = {{Pass::forward, 2 * 6 * 8}, {Pass::input_grad, 2 * 6 * 8}};
  const Expected affine{Pass::weight_grad, 2 * 6 * 4};
  check_messages(cost_of<Conv2D>({.channels = 4, .kernel = 3, .groups = 2}, {x}, split),
                 {{Pass::weight_grad, 4 * (4 * 27 + 4)}});
  check_messages(cost_of<Conv2D>({.channels = 4, .kernel = 3, .bias = false}, {x}, split),
                 {{Pass::weight_grad, 4 * 4 * 54}});
  check_messages(cost_of<Linear>({.features = 7}, {x}, split), {{Pass::weight_grad, 4 * 7 * 481}});
  check_messages(cost_of<Linear>({.features = 7, .bias = false}, {x}, split),
                 {{Pass::weight_grad, 4 * 7 * 480}});
  check_messages(cost_of<BatchNorm>({}, {x}, split), {affine});
  check_messages(cost_of<BatchNorm>({.affine = false}, {x}, split), {});
  check_messages(cost_of<BatchNorm>({.global = true}, {x}, split), {affine, sums[0], sums[1]});
  check_messages(cost_of<BatchNorm>({.global = true, .affine = false}, {x}, split),
                 {sums[0], sums[1]});
  check_messages(cost_of<SoftmaxCrossEntropy>({}, {{8, 10, 1, 1}}, split),
                 {{Pass::forward, 5 * 8}});
}

TEST_CASE("work of the update rules") {
  check_work(update_work({}, 10, DType::f32), 20, 4 * 3 * 10);
  check_work(update_work({.momentum = 0.9}, 10, DType::f32), 40, 4 * 5 * 10);
  check_work(update_work({.momentum = 0.9, .nesterov = true}, 10, DType::f32), 60, 4 * 5 * 10);
  check_work(update_work({.kind = UpdateRule::Kind::adam}, 10, DType::f32), 120, 4 * 7 * 10);
  check_work(update_work({.kind = UpdateRule::Kind::adamw}, 10, DType::f64), 120, 8 * 7 * 10);
  check_work(update_work({.momentum = 0.9}, 10, DType::f64), 40, 8 * 5 * 10);
}
