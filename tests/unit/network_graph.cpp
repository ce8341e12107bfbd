// Graphs that cannot be placed: what is said of them.
#include "catch.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/placed.hpp>

using namespace lamina;

namespace {

/// What placing says, or nothing.
std::string placing(const Network& net, bool training = true) {
  try {
    net.place({.batch = 4, .backend = reference_backend(), .training = training});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a layer whose output nobody reads is named") {
  const bool training = GENERATE(true, false);
  Network net({.c = 3, .h = 8, .w = 8});
  const Node stem = net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "stem");
  stem.add<ReLU>({}, "side1").add<Conv2D>({.channels = 2, .kernel = 1}, "side2");
  const Node main = stem.add<Linear>({.features = 10}, "fc");
  SECTION("as the end of a branch") {
    main.add<SoftmaxCrossEntropy>({}, "loss");
    CHECK(placing(net, training) ==
          "side2 (Conv2D): no layer reads its output; expected one that does, or that it is the "
          "last layer, as loss (SoftmaxCrossEntropy) is");
  }
  SECTION("where the branch was added last, and the loss before it") {
    main.add<SoftmaxCrossEntropy>({}, "loss");
    stem.add<ReLU>({}, "side3");
    CHECK_THAT(placing(net, training),
               ContainsSubstring("side2 (Conv2D): no layer reads its output; "));
  }
}

TEST_CASE("names in more than one line, and layers without inputs, are refused") {
  Network net({.c = 3, .h = 8, .w = 8});
  CHECK_THROWS_WITH(net.add<ReLU>({}, "a\nb"),
                    "layer 'a?b': expected a name without control characters, here ?");
  CHECK_THROWS_WITH(net.join<Add>({}, {}, "sum"),
                    "layer 'sum': expected an input or more, got none");
  net.add<Linear>({.features = 10}, "\xc3\xa9t\xc3\xa9").add<SoftmaxCrossEntropy>();
  CHECK(placing(net).empty());
}

TEST_CASE("a network whose every output is read is placed") {
  Network net({.c = 3, .h = 8, .w = 8});
  const Node stem = net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1});
  net.join<Add>({stem.add<ReLU>(), stem});
  net.add<Linear>({.features = 10}).add<SoftmaxCrossEntropy>();
  CHECK(placing(net).empty());
}
