// Layers under splits: the loss and every gradient are those of one rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("Conv2D under every split equals one rank") {
  check_all(between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}),
            {.channel = 6, .input = 8, .height = 9, .width = 8});
}

TEST_CASE("Conv2D with groups under every split equals one rank") {
  struct Case {
    std::int64_t channels;  // of x
    Conv2D::Options options;
  };
  const auto [channels, options] =
      GENERATE(Case{10, {.channels = 10, .kernel = 3, .pad = 1, .groups = 10}},  // depthwise
               Case{10, {.channels = 20, .kernel = 3, .pad = 1, .groups = 10}},
               Case{14, {.channels = 21, .kernel = 2, .groups = 7, .bias = false}});
  CAPTURE(channels, options.channels, options.groups);
  const auto build = [&] {
    Network net({.c = 3, .h = 6, .w = 5});
    net.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1}, "first");
    net.add<Conv2D>(options, "it");
    net.add<Conv2D>({.channels = 4, .kernel = 2}, "then");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  const int windows = options.pad.top > 0 ? 0 : 1;  // fewer than rows or columns
  const Split most{.channel = int(options.groups), .height = 6 - windows, .width = 5 - windows};
  SECTION("reference") { check_all(build, most); }
  SECTION("oneDNN") {
    if (!has_onednn()) return;
    check_all(build, most, 1e-4, {.backend = "onednn", .dtype = DType::f32}, {2, 3, 4});
  }
}

TEST_CASE("Conv2D cuts whole groups with their channels of x and y") {
  const Conv2D conv({.channels = 15, .groups = 5});
  const std::vector<Shape> xs{{2, 10, 3, 3}};
  const Split split{.channel = 3};  // 2, 2 and 1 groups
  const Blocks x = conv.input_blocks(0, xs, split, 4), y = conv.output_blocks(xs, split, 4);
  CHECK((x.whole == xs[0] && y.whole == conv.output(xs)));
  CHECK((x.box[0].c == Part{0, 4} && x.box[1].c == Part{4, 4} && x.box[2].c == Part{8, 2}));
  CHECK((y.box[0].c == Part{0, 6} && y.box[1].c == Part{6, 6} && y.box[2].c == Part{12, 3}));
  CHECK((x.box[3] == Box{} && y.box[3] == Box{}));
  const Cost cost = conv.cost(xs, split, DType::f32);  // of 4 and 6 channels
  CHECK(cost.forward.flops == 2 * 2 * 6 * 2 * 9);
  CHECK(cost.forward.bytes == 4 * (2 * 4 * 9 + 2 * 6 * 9 + 6 * 2));
  CHECK(cost.parameters == 6 * 2 + 6);
  CHECK(why_illegal(conv, xs, {.channel = 6}, 8) ==
        "split channel:6: there are only 5 to be cut: its groups are cut, each with its channels "
        "of x and y");
  CHECK(why_illegal(conv, xs, {.input = 2}, 8) ==
        "cannot be split by input: a group's channels of x go with its channels of y");
}

TEST_CASE("Linear under every split equals one rank") {
  check_all(between<Linear>({.features = 7}), {.channel = 7, .input = 8});
}

TEST_CASE("Linear is cut by channels of its input and behind a Flatten by features") {
  const Linear fc({.features = 7});
  CHECK(why_illegal(fc, std::array{Shape{4, 1, 28, 28}}, {.input = 2}, 2) ==
        "split input:2: there is only 1 to be cut: its input is cut by whole channels; with a "
        "Flatten in front every feature is one");
  CHECK(why_illegal(fc, std::array{Shape{4, 784, 1, 1}}, {.input = 2}, 2).empty());
  CHECK(why_illegal(fc, std::array{Shape{4, 3, 1, 1}}, {.input = 4}, 4) ==
        "split input:4: there are only 3 input channels to be cut");
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
  const int stride = int(options.stride.h);
  const Split most{.height = (11 + stride - 1) / stride,
                   .width = (int(width) + stride - 1) / stride};
  check_all(build, most, 1e-4, {.backend = "auto", .dtype = DType::f32}, {2, 3, 4},
            Axis::height | Axis::width);
}
