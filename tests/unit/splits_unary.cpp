// Layers with one input and no weights under splits: the loss and every gradient are those of one
// rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// oneDNN in f32 on few ranks, where it is built in.
template <class Build>
void check_onednn(Build&& build, const Split& most) {
  if (!has_onednn()) return;
  check_all(build, most, 1e-4, {.backend = "onednn", .dtype = DType::f32}, {2, 3, 4});
}

template <class L>
std::string refusal(typename L::Options options, const Split& split) {
  StepOn o;
  o.splits["it"] = split;
  try {
    step_on(split.ways(), between<L>(options), o);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

constexpr Shape x{4, 8, 9, 8};

/// What there is to be cut of a value like x.
const Split all_of_x{.channel = 8, .height = 9, .width = 8};

template <class L>
Cost cost_of(typename L::Options options, const Split& split) {
  return L(options).cost(std::array{x}, split, DType::f64);
}

/// What the halo of a split costs, forward and backward, in elements.
template <class L>
void check_halo(typename L::Options options, const Split& split, double forward, double backward,
                int ranks) {
  const auto messages = cost_of<L>(options, split).messages;
  INFO(split.text());
  REQUIRE(messages.size() == 2);
  for (const Message& m : messages) {
    CHECK(m.op == Collective::halo);
    CHECK(split.ways(m.axes) == ranks);
  }
  CHECK(messages[0].pass == Pass::forward);
  CHECK(messages[0].bytes == 8 * forward);
  CHECK(messages[1].pass == Pass::input_grad);
  CHECK(messages[1].bytes == 8 * backward);
}

}  // namespace

TEST_CASE("element-wise layers under every split equal one rank") {
  SECTION("ReLU") { check_all(between<ReLU>({}), all_of_x); }
  SECTION("LeakyReLU") { check_all(between<LeakyReLU>({}), all_of_x); }
  SECTION("Sigmoid") { check_all(between<Sigmoid>({}), all_of_x); }
  SECTION("Tanh") { check_all(between<Tanh>({}), all_of_x); }
  SECTION("ReLU, oneDNN") { check_onednn(between<ReLU>({}), all_of_x); }
  SECTION("Sigmoid, oneDNN") { check_onednn(between<Sigmoid>({}), all_of_x); }
}

TEST_CASE("Dropout draws one mask under every split") {
  SECTION("reference") { check_all(between<Dropout>({.rate = 0.4}), all_of_x); }
  SECTION("oneDNN") { check_onednn(between<Dropout>({.rate = 0.4}), all_of_x); }
  SECTION("none in inference") {
    StepOn o{.training = false};
    const Whole alone = step_on(1, between<Dropout>({.rate = 0.4}), o);
    o.splits["it"] = {.channel = 2, .height = 2};
    CHECK(difference(alone, step_on(4, between<Dropout>({.rate = 0.4}), o)) < 1e-10);
  }
}

TEST_CASE("Softmax under every split equals one rank") {
  SECTION("reference") { check_all(between<Softmax>({}), {.height = 9, .width = 8}); }
  SECTION("oneDNN") { check_onednn(between<Softmax>({}), {.height = 9, .width = 8}); }
  SECTION("by channel it is not split") {
    CHECK_THAT(refusal<Softmax>({}, {.channel = 2}),
               ContainsSubstring(
                   "it (Softmax): cannot be split by channel: its sum runs over all channels"));
  }
}

TEST_CASE("PadChannels under every split equals one rank") {
  // On 8 ranks one has channels of x and zeros, some have either.
  const Split most{.channel = 11, .height = 9, .width = 8};
  SECTION("reference") { check_all(between<PadChannels>({.channels = 11}), most); }
  SECTION("oneDNN") { check_onednn(between<PadChannels>({.channels = 11}), most); }
  SECTION("oneDNN, whole blocks") {
    check_onednn(between<PadChannels>({.channels = 64}), {.channel = 64, .height = 9, .width = 8});
  }
}

TEST_CASE("MaxPool2D under every split equals one rank") {
  SECTION("windows side by side") {
    check_all(between<MaxPool2D>({.window = 2}), {.channel = 8, .height = 4, .width = 4});
  }
  SECTION("windows that overlap, padded") {
    check_all(between<MaxPool2D>({.window = 3, .stride = 2, .pad = 1}),
              {.channel = 8, .height = 5, .width = 4});
  }
  SECTION("rounded up, unlike pads") {
    check_all(
        between<MaxPool2D>({.window = {3, 2}, .stride = {2, 3}, .pad = {1, 0, 2, 1}, .ceil = true}),
        {.channel = 8, .height = 5, .width = 3});
  }
  SECTION("windows over several ranks") {
    check_all(between<MaxPool2D>({.window = 5, .stride = 1, .pad = 2}),
              {.channel = 8, .height = 9, .width = 8});
  }
  SECTION("rows that no window reads") {
    check_all(between<MaxPool2D>({.window = 1, .stride = 2}),
              {.channel = 8, .height = 5, .width = 4});
  }
  SECTION("oneDNN") {
    check_onednn(between<MaxPool2D>({.window = 3, .stride = 2, .pad = 1}),
                 {.channel = 8, .height = 5, .width = 4});
  }
  SECTION("oneDNN, rounded up") {
    check_onednn(between<MaxPool2D>({.window = 2, .stride = 2, .ceil = true}),
                 {.channel = 8, .height = 5, .width = 4});
  }
}

TEST_CASE("AvgPool2D under every split equals one rank") {
  SECTION("windows side by side") {
    check_all(between<AvgPool2D>({.window = 2}), {.channel = 8, .height = 4, .width = 4});
  }
  SECTION("counting the padding") {
    check_all(between<AvgPool2D>({.window = 3, .stride = 2, .pad = {1, 1, 1, 2}, .ceil = true}),
              {.channel = 8, .height = 5, .width = 5});
  }
  SECTION("not counting the padding") {
    check_all(between<AvgPool2D>(
                  {.window = 3, .stride = 2, .pad = {1, 2}, .ceil = true, .count_padding = false}),
              {.channel = 8, .height = 5, .width = 5});
  }
  SECTION("windows over several ranks") {
    check_all(between<AvgPool2D>({.window = 5, .stride = 1, .pad = 2, .count_padding = false}),
              {.channel = 8, .height = 9, .width = 8});
  }
  SECTION("to a number of outputs") {
    check_all(between<AvgPool2D>({.outputs = {3, 4}}), {.channel = 8, .height = 3, .width = 4});
  }
  SECTION("oneDNN") {
    check_onednn(between<AvgPool2D>({.window = 3, .stride = 2, .pad = 1}),
                 {.channel = 8, .height = 5, .width = 4});
    check_onednn(between<AvgPool2D>({.window = 3, .pad = 1, .ceil = true, .count_padding = false}),
                 {.channel = 8, .height = 4, .width = 3});
  }
}

TEST_CASE("GlobalAvgPool under every split equals one rank") {
  SECTION("reference") { check_all(between<GlobalAvgPool>({}), all_of_x); }
  SECTION("oneDNN") { check_onednn(between<GlobalAvgPool>({}), all_of_x); }
  SECTION("of more parts than rows") {
    CHECK_THAT(refusal<GlobalAvgPool>({}, {.height = 10}),
               ContainsSubstring("it (") && ContainsSubstring("there are only 9 rows to be cut"));
  }
}

TEST_CASE("LRN under every split equals one rank") {
  // Strong enough for the neighbours to matter.
  SECTION("reference") { check_all(between<LRN>({.size = 5, .alpha = 3, .k = 0.5}), all_of_x); }
  SECTION("windows over several ranks") {
    check_all(between<LRN>({.size = 9, .alpha = 3, .k = 0.5}), all_of_x);
  }
  SECTION("oneDNN") { check_onednn(between<LRN>({.size = 5, .alpha = 3, .k = 0.5}), all_of_x); }
}

TEST_CASE("the costs of a split are those of the largest part, with all messages") {
  const auto same = [](const Cost& whole, const Cost& part, double ways) {
    CHECK(part.forward.flops == whole.forward.flops / ways);
    CHECK(part.input_grad.bytes == whole.input_grad.bytes / ways);
    CHECK(part.messages.empty());
  };
  same(cost_of<ReLU>({}, {}), cost_of<ReLU>({}, {.batch = 2, .channel = 4, .width = 2}), 16);
  same(cost_of<Dropout>({}, {}), cost_of<Dropout>({}, {.channel = 2, .width = 2}), 4);
  same(cost_of<Softmax>({}, {}), cost_of<Softmax>({}, {.batch = 2, .width = 2}), 4);
  same(cost_of<LRN>({}, {}), cost_of<LRN>({}, {.batch = 2, .width = 2}), 4);
  same(cost_of<PadChannels>({.channels = 64}, {.channel = 4}),
       cost_of<PadChannels>({.channels = 64}, {.channel = 4, .height = 3}), 3);
  // The first rank has as many channels of y as x has in all.
  CHECK(cost_of<PadChannels>({.channels = 16}, {.channel = 2}).input_grad.bytes ==
        8 * 2 * 4 * 8 * 9 * 8);
  CHECK(cost_of<PadChannels>({.channels = 16}, {.channel = 4}).forward.bytes ==
        8 * (4 + 4) * 4 * 9 * 8);
  same(cost_of<MaxPool2D>({.window = {3, 2}}, {}),
       cost_of<MaxPool2D>({.window = {3, 2}}, {.height = 3, .width = 4}), 12);
  same(cost_of<GlobalAvgPool>({}, {}), cost_of<GlobalAvgPool>({}, {.batch = 2}), 2);

  const double row = 4 * 8 * 8, column = 4 * 8 * 9;
  const MaxPool2D::Options three{.window = 3, .stride = 1, .pad = 1};
  check_halo<MaxPool2D>(three, {.height = 2}, row, row, 2);
  check_halo<MaxPool2D>(three, {.height = 3}, 2 * row, 2 * row, 3);
  check_halo<MaxPool2D>(three, {.width = 2}, column, column, 2);
  check_halo<AvgPool2D>({.window = 3, .stride = 2}, {.width = 2}, column, column, 2);
  check_halo<LRN>({.size = 5}, {.channel = 2}, 2 * 4 * 9 * 8, 2 * 4 * 9 * 8, 2);
  check_halo<LRN>({.size = 5}, {.channel = 4}, 4 * 4 * 9 * 8, 4 * 4 * 9 * 8, 4);
  CHECK(cost_of<LRN>({}, {.channel = 2}).forward.flops ==
        cost_of<LRN>({}, {}).forward.flops * 6 / 8);

  const Cost mean = cost_of<GlobalAvgPool>({}, {.height = 3, .width = 2});
  CHECK(mean.forward.flops == cost_of<GlobalAvgPool>({}, {}).forward.flops / 6);
  REQUIRE(mean.messages.size() == 1);
  CHECK(mean.messages[0].op == Collective::all_reduce);
  CHECK(mean.messages[0].bytes == 8 * 4 * 8);
  CHECK(mean.messages[0].axes == (Axis::height | Axis::width));
}
