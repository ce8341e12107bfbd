// Output shapes, and what layers say about inputs and options that do not fit.
#include "layers.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

Network image() { return Network({.c = 4, .h = 9, .w = 12}); }

/// Shape of y of one layer after an image of 4x9x12.
template <class L>
Shape shape_of(typename L::Options options) {
  Network net = image();
  return net.add<L>(options).shape();
}

/// What a network says when the layer is added under the name "layer".
template <class L>
std::string refusal(typename L::Options options) {
  Network net = image();
  return error_of([&] { net.add<L>(options, "layer"); });
}

}  // namespace

TEST_CASE("output shapes") {
  CHECK(shape_of<Conv2D>({.channels = 8, .kernel = 3}) == Shape{1, 8, 7, 10});
  CHECK(shape_of<Conv2D>({.channels = 8,
                          .kernel = {2, 3},
                          .stride = {2, 1},
                          .pad = {1, 0, 2, 3},
                          .dilation = {2, 1}}) == Shape{1, 8, 5, 13});
  CHECK(shape_of<Linear>({.features = 8}) == Shape{1, 8, 1, 1});
  CHECK(shape_of<MaxPool2D>({}) == Shape{1, 4, 4, 6});
  CHECK(shape_of<MaxPool2D>({.window = 2, .ceil = true}) == Shape{1, 4, 5, 6});
  CHECK(shape_of<MaxPool2D>({.window = 3, .stride = 2, .pad = 1}) == Shape{1, 4, 5, 6});
  CHECK(shape_of<AvgPool2D>({.window = 3}) == Shape{1, 4, 3, 4});
  CHECK(shape_of<AvgPool2D>({.outputs = {3, 6}}) == Shape{1, 4, 3, 6});
  CHECK(shape_of<GlobalAvgPool>({}) == Shape{1, 4, 1, 1});
  CHECK(shape_of<Flatten>({}) == Shape{1, 432, 1, 1});
  CHECK(shape_of<PadChannels>({.channels = 5}) == Shape{1, 5, 9, 12});
  CHECK(shape_of<BatchNorm>({}) == Shape{1, 4, 9, 12});
  CHECK(shape_of<LRN>({}) == Shape{1, 4, 9, 12});
  CHECK(shape_of<Dropout>({}) == Shape{1, 4, 9, 12});
}

TEST_CASE("an input that does not fit is named with what was expected") {
  CHECK(refusal<Conv2D>({.channels = 8, .kernel = 11}) ==
        "layer (Conv2D): kernel 11x11 does not fit into the padded input 1x4x9x12");
  CHECK(refusal<Conv2D>({.channels = 6, .groups = 3}) ==
        "layer (Conv2D): groups 3 must divide the input channels 4 and the output channels 6");
  CHECK(refusal<Conv2D>({.channels = 7, .groups = 2}) ==
        "layer (Conv2D): groups 2 must divide the input channels 4 and the output channels 7");
  CHECK(refusal<MaxPool2D>({.window = {10, 2}}) ==
        "layer (MaxPool2D): window 10x2 does not fit into the padded input 1x4x9x12");
  CHECK(refusal<MaxPool2D>({.window = 2, .pad = 2}) ==
        "layer (MaxPool2D): pad must be smaller than the window 2x2");
  CHECK(refusal<AvgPool2D>({.outputs = 6}) ==
        "layer (AvgPool2D): to average to 6x6 the input must be a multiple of that in height and "
        "width, got 9x12");
  CHECK(refusal<PadChannels>({.channels = 4}) ==
        "layer (PadChannels): expected less than 4 channels, got input 1x4x9x12");
}

TEST_CASE("options out of range are refused") {
  CHECK_THAT(refusal<Conv2D>({}),
             ContainsSubstring("layer") && ContainsSubstring("channels must be positive, got 0"));
  CHECK_THAT(refusal<Conv2D>({.channels = 1, .stride = 0}), ContainsSubstring("stride"));
  CHECK_THAT(refusal<Conv2D>({.channels = 1, .dilation = -1}), ContainsSubstring("dilation"));
  CHECK_THAT(refusal<Conv2D>({.channels = 1, .pad = -1}), ContainsSubstring("pad"));
  CHECK_THAT(refusal<Linear>({}), ContainsSubstring("features must be positive, got 0"));
  CHECK_THAT(refusal<Linear>({.features = 1, .normal = -1}), ContainsSubstring("deviation"));
  CHECK_THAT(refusal<LeakyReLU>({.slope = -1}), ContainsSubstring("slope"));
  CHECK_THAT(refusal<MaxPool2D>({.window = 0}), ContainsSubstring("window"));
  CHECK_THAT(refusal<MaxPool2D>({.window = 2, .stride = -1}), ContainsSubstring("stride"));
  CHECK_THAT(refusal<BatchNorm>({.epsilon = 0}), ContainsSubstring("epsilon"));
  CHECK_THAT(refusal<Dropout>({.rate = 1}), ContainsSubstring("rate must be in [0, 1), got 1"));
  CHECK_THAT(refusal<LRN>({.size = 4}), ContainsSubstring("odd, got 4"));
  CHECK_THAT(refusal<SoftmaxCrossEntropy>({.label_smoothing = 1}),
             ContainsSubstring("[0, 1), got 1"));
}

TEST_CASE("branches that do not fit together are refused") {
  Network net = image();
  const Node x = net.input();
  const Node narrow = x.add<Conv2D>({.channels = 2}), small = x.add<MaxPool2D>();
  CHECK(error_of([&] {
          net.join<Add>({x, narrow}, {}, "sum");
        }) == "sum (Add): expected inputs of one shape, got 1x4x9x12 and 1x2x9x12");
  CHECK(error_of([&] {
          net.join<Concat>({x, small}, {}, "both");
        }) ==
        "both (Concat): expected inputs that differ in channels only, got 1x4x9x12 and 1x4x4x6");
  CHECK(error_of([&] { x.add<Add>({}, "sum"); }) ==
        "sum (Add): expected at least two inputs, got 1");
  CHECK(error_of([&] {
          net.join<ReLU>({x, x}, {}, "relu");
        }) == "relu (ReLU): expected one input, got 2");
  CHECK(net.join<Concat>({x, narrow}).shape() == Shape{1, 6, 9, 12});  // none of them was added
}

TEST_CASE("layers describe their options") {
  CHECK(Conv2D({.channels = 64, .kernel = 3, .stride = 2, .pad = 1}).describe() == "64 3x3 s2 p1");
  CHECK(MaxPool2D({.window = 3, .stride = 2}).describe() == "3x3 s2");
  CHECK(MaxPool2D({}).describe() == "2x2 s2");
  CHECK(AvgPool2D({.outputs = 7}).describe() == "to 7x7");
  CHECK(Dropout({.rate = 0.5}).describe() == "0.5");
}

TEST_CASE("BatchNorm refuses a single value per channel") {
  Network net({.c = 3});
  net.add<BatchNorm>({}, "norm");
  CHECK(error_of([&] { net.place({.batch = 1, .backend = reference_backend()}); }) ==
        "norm (BatchNorm): batch norm needs more than one value per channel, got input 1x3x1x1");
}
