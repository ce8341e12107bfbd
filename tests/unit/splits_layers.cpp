// Layers under splits: the loss and every gradient are those of one rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("Conv2D under every split equals one rank") {
  check_all(between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}));
}

TEST_CASE("Linear under every split equals one rank") {
  check_all(between<Linear>({.features = 7}));
}

// oneDNN chooses its layout of the weights by the size of a block, so unevenly cut ranks differ.
TEST_CASE("Conv2D under every split of an uneven image equals one rank on any back end") {
  const auto options =
      GENERATE(Conv2D::Options{.channels = 32, .kernel = 3, .pad = 1},
               Conv2D::Options{.channels = 16, .kernel = 5, .stride = 2, .pad = 2},
               Conv2D::Options{.channels = 32, .kernel = 3, .pad = 1, .groups = 2});
  const std::int64_t channels = GENERATE(8, 32), width = GENERATE(7, 10);
  CAPTURE(options.kernel.h, options.groups, channels, width);
  const auto build = [&] {
    Network net({.c = 3, .h = 11, .w = width});
    net.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1}, "first");
    net.add<Conv2D>(options, "it");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  check_all(build, 1e-4, {.backend = "auto", .dtype = DType::f32}, {2, 3, 4},
            Axis::height | Axis::width);
}
