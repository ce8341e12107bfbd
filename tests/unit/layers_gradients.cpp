// Gradients of every layer against central differences of the loss, in f64. Each network starts
// with a layer that has weights: their gradients are right only if every dx above them is.
#include "layers.hpp"
#include "support/peek.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// Compares up to 25 elements of each parameter's gradient; f64 differences of a smooth function
/// are good to about 1e-9 at this step.
void compare_gradients(const Network& net, std::int64_t batch = 4) {
  Run run(net, batch);
  run.context.step = 3;
  const double loss = run();
  CHECK(loss > 0);
  std::vector<std::vector<double>> gradients;
  for (const auto& n : run.net.parameters()) {
    if (!n.parameter->trained) continue;
    const auto g = peek(n.parameter->grad).elements<double>();
    gradients.emplace_back(g.begin(), g.end());
  }
  std::size_t which = 0;
  double largest = 0;
  for (const auto& n : run.net.parameters()) {
    if (!n.parameter->trained) continue;
    const auto& gradient = gradients[which++];
    const auto w = peek(n.parameter->value).elements<double>();
    for (std::size_t i = 0; i < w.size(); i += 1 + w.size() / 25) {
      const double kept = w[i], step = 1e-5;
      w[i] = kept + step;
      const double above = run();
      w[i] = kept - step;
      const double below = run();
      w[i] = kept;
      const double expected = (above - below) / (2 * step);
      INFO(n.name << '[' << i << ']');
      CHECK(gradient[i] == Approx(expected).epsilon(1e-6).margin(1e-8));
      largest = std::max(largest, std::abs(expected));
    }
  }
  CHECK(largest > 1e-3);  // there was something to compare
}

/// conv -> L -> linear -> loss.
template <class L>
void compare_between(typename L::Options options, Shape sample = {.c = 2, .h = 6, .w = 5}) {
  Network net(sample);
  net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "first");
  net.add<L>(options, "layer");
  net.add<Linear>({.features = 3}, "last");
  net.add<SoftmaxCrossEntropy>();
  compare_gradients(net);
}

}  // namespace

TEST_CASE("gradients of Conv2D") {
  SECTION("plain") { compare_between<Conv2D>({.channels = 3, .kernel = 3}); }
  SECTION("1x1 without bias") { compare_between<Conv2D>({.channels = 5, .bias = false}); }
  SECTION("stride") {
    compare_between<Conv2D>({.channels = 3, .kernel = 3, .stride = 2, .pad = 1});
  }
  SECTION("groups") { compare_between<Conv2D>({.channels = 6, .kernel = 3, .groups = 2}); }
  SECTION("depthwise") { compare_between<Conv2D>({.channels = 4, .kernel = 3, .groups = 4}); }
  SECTION("all at once") {
    compare_between<Conv2D>({.channels = 4,
                             .kernel = {2, 3},
                             .stride = {2, 1},
                             .pad = {1, 0, 2, 3},
                             .dilation = {2, 1},
                             .groups = 2});
  }
}

TEST_CASE("gradients of Linear") {
  SECTION("of an image") { compare_between<Linear>({.features = 7}); }
  SECTION("without bias") { compare_between<Linear>({.features = 2, .bias = false}); }
}

TEST_CASE("gradients of the activations") {
  SECTION("ReLU") { compare_between<ReLU>({}); }
  SECTION("LeakyReLU") { compare_between<LeakyReLU>({.slope = 0.2}); }
  SECTION("Sigmoid") { compare_between<Sigmoid>({}); }
  SECTION("Tanh") { compare_between<Tanh>({}); }
  SECTION("Softmax") { compare_between<Softmax>({}); }
  SECTION("LRN") { compare_between<LRN>({.size = 3, .alpha = 0.5, .k = 1}); }
}

TEST_CASE("gradients of pooling") {
  SECTION("maximum") { compare_between<MaxPool2D>({.window = 2}); }
  SECTION("overlapping maximum") {
    compare_between<MaxPool2D>({.window = 3, .stride = 2, .pad = 1, .ceil = true});
  }
  SECTION("average") { compare_between<AvgPool2D>({.window = {3, 2}, .stride = 2, .pad = 1}); }
  SECTION("average of what is inside") {
    compare_between<AvgPool2D>({.window = 3, .stride = 1, .pad = 1, .count_padding = false});
  }
  SECTION("subsampling") { compare_between<AvgPool2D>({.window = 1, .stride = 2}); }
  SECTION("identity") { compare_between<AvgPool2D>({.outputs = {6, 5}}); }
  SECTION("to a number of outputs") { compare_between<AvgPool2D>({.outputs = {2, 1}}); }
  SECTION("global") { compare_between<GlobalAvgPool>({}); }
}

TEST_CASE("gradients of BatchNorm") {
  SECTION("affine") { compare_between<BatchNorm>({.scale = 0.7}); }
  SECTION("plain") { compare_between<BatchNorm>({.affine = false}); }
  SECTION("global on one rank") { compare_between<BatchNorm>({.global = true}); }
}

TEST_CASE("gradients of Dropout, Flatten and PadChannels") {
  SECTION("Dropout") { compare_between<Dropout>({.rate = 0.3}); }
  SECTION("Flatten") { compare_between<Flatten>({}); }
  SECTION("PadChannels") { compare_between<PadChannels>({.channels = 7}); }
}

TEST_CASE("gradients of SoftmaxCrossEntropy with label smoothing") {
  Network net({.c = 5});
  net.add<Linear>({.features = 3});
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.2});
  compare_gradients(net);
}

TEST_CASE("gradients where branches meet") {
  Network net({.c = 2, .h = 4, .w = 4});
  const Node x = net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "stem");
  SECTION("Add of a value and what was made of it in place") { net.join<Add>({x, x.add<ReLU>()}); }
  SECTION("Add of a value to itself") { net.join<Add>({x, x}); }
  SECTION("Add of three, nested") {
    const Node a = x.add<ReLU>(), b = x.add<Tanh>(), c = x.add<Sigmoid>();
    net.join<Add>({net.join<Add>({a, b}).add<ReLU>(), c, x});
  }
  SECTION("Add below Add, without anything between") {
    const Node a = x.add<Tanh>();
    net.join<Add>({net.join<Add>({x.add<ReLU>(), a}), a.add<ReLU>()});
  }
  SECTION("Concat of branches of one value") {
    const Node a = x.add<Conv2D>({.channels = 3}),
               b = x.add<MaxPool2D>({.window = 3, .stride = 1, .pad = 1});
    net.join<Concat>({a, b, x});
  }
  SECTION("Concat with the input, which needs no gradient") { net.join<Concat>({net.input(), x}); }
  SECTION("Add with an input that needs no gradient") {
    const Node y = x.add<Conv2D>({.channels = 2}).add<ReLU>();
    net.join<Add>({net.input(), y}).add<ReLU>();
  }
  SECTION("Flatten of a value that goes on elsewhere") {
    const Node flat = x.add<Flatten>().add<ReLU>().add<Linear>({.features = 3});
    net.join<Concat>({flat, x.add<GlobalAvgPool>()});
  }
  SECTION("a residual block with batch norm") {
    Node y = x.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}).add<BatchNorm>().add<ReLU>();
    y = y.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}).add<BatchNorm>();
    net.join<Add>({y, x.add<Conv2D>({.channels = 4}).add<BatchNorm>()}).add<ReLU>();
  }
  net.add<Linear>({.features = 3});
  net.add<SoftmaxCrossEntropy>();
  compare_gradients(net);
}
