// BatchNorm, Add, Concat and Flatten under splits: the loss and every gradient are those of one
// rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// What follows the layer under test; its gradients tell whether dx is right.
Network ending(Network net) {
  net.add<Conv2D>({.channels = 4, .kernel = 2, .stride = 2, .pad = 1}, "then");
  net.add<Linear>({.features = 5}, "fc");
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
  return net;
}

auto normalised(BatchNorm::Options options) {
  return [options] {
    Network net({.c = 3, .h = 9, .w = 8});
    // Its bias would have no gradient but rounding errors.
    net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "first");
    net.add<BatchNorm>(options, "it");
    return ending(std::move(net));
  };
}

/// Branches of these channels from one value, which they share.
template <class L>
auto joined(std::vector<std::int64_t> channels) {
  return [channels] {
    Network net({.c = 3, .h = 9, .w = 8});
    const Node x = net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "first");
    std::vector<Node> branches;
    for (const std::int64_t c : channels)
      branches.push_back(
          x.add<Conv2D>({.channels = c, .kernel = 3, .pad = 1}, text("branch", branches.size())));
    net.join<L>(branches, {}, "it");
    return ending(std::move(net));
  };
}

Network flattened() {
  Network net({.c = 3, .h = 9, .w = 8});
  net.add<Conv2D>({.channels = 5, .kernel = 3, .stride = 2, .pad = 1}, "first");
  net.add<Flatten>({}, "it");
  net.add<Linear>({.features = 5}, "fc");
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
  return net;
}

const Split all_of_normalised{.channel = 8, .height = 9, .width = 8};
constexpr Axis but_samples = Axis::channel | Axis::height | Axis::width;

/// On the fast back end, where it is built in.
template <class Build>
void check_onednn(Build&& build, const Split& most, Axis axes = all_but_input) {
  if (!has_onednn()) return;
  check_all(build, most, 1e-4, {.backend = "onednn", .dtype = DType::f32}, {2, 3, 4}, axes);
}

/// y and the gradients of one step; "it" is split so, the others as `o` says.
template <class Build>
double apart(int ranks, Build&& build, StepOn o) {
  return difference(step_on(1, build, {}), step_on(ranks, build, o));
}

}  // namespace

TEST_CASE("BatchNorm with global statistics under every split equals one rank") {
  check_all(normalised({.global = true, .scale = 2}), all_of_normalised);
  check_all(normalised({.global = true, .affine = false}), all_of_normalised, 1e-10, {}, {4});
}

TEST_CASE("BatchNorm with local statistics equals one rank where samples are not cut") {
  check_all(normalised({.scale = 2}), all_of_normalised, 1e-10, {}, {2, 3, 4, 6, 8}, but_samples);
}

TEST_CASE("BatchNorm with local statistics: ranks that share samples share statistics") {
  // Both have two groups of five samples; in one, each group is two ranks.
  const auto build = normalised({.scale = 2});
  const auto run = [&](int ranks, const Split& split) {
    Whole whole = step_on(ranks, build, {.splits = {{"it", split}}});
    for (const char* of_one_group : {"it.running_mean", "it.running_var"})
      whole.parameters.erase(of_one_group);
    return whole;
  };
  const Whole two = run(2, {.batch = 2});
  for (const Split& split : {Split{.batch = 2, .height = 2}, Split{.batch = 2, .width = 2},
                             Split{.batch = 2, .channel = 2}}) {
    INFO(split.text());
    CHECK(difference(two, run(4, split)) < 1e-10);
  }
  CHECK(apart(2, build, {.splits = {{"it", {.batch = 2}}}}) > 1e-3);
}

TEST_CASE("BatchNorm refuses one value per channel on a rank, alike on all ranks") {
  // Three samples of one pixel on two ranks: only the second has a single value per channel.
  const auto error_on = [](int rank, const BatchNorm::Options& options, const Split& split) {
    std::string why;
    run_ranks(2, [&](World& world) {
      Network net({.c = 4});
      net.add<BatchNorm>(options, "it");
      try {
        net.place({.batch = 3,
                   .backend = make_backend("reference", DType::f64),
                   .ranks = world,
                   .splits = {{.batch = 2}, split},
                   .dtype = DType::f64});
      } catch (const Error& e) {
        if (world.rank() == rank) why = e.what();
      }
    });
    return why;
  };
  for (const int rank : {0, 1}) {
    CHECK(error_on(rank, {}, {.batch = 2}) ==
          "it (BatchNorm): split batch:2: batch norm needs more than one value per channel, got "
          "1x4x1x1 on a rank");
    CHECK(error_on(rank, {}, {}).empty());
    CHECK(error_on(rank, {}, {.channel = 2}).empty());
    CHECK(error_on(rank, {.global = true}, {.batch = 2}).empty());
  }
}

TEST_CASE("BatchNorm under splits on the fast back end") {
  check_onednn(normalised({.global = true}), all_of_normalised);
  check_onednn(normalised({}), all_of_normalised, but_samples);
}

TEST_CASE("BatchNorm in inference under splits equals one rank") {
  check_all(normalised({.scale = 2}), all_of_normalised, 1e-10, {.training = false}, {4, 6});
}

TEST_CASE("Add under every split equals one rank") {
  const Split most{.channel = 6, .height = 9, .width = 8};
  check_all(joined<Add>({6, 6, 6}), most);
  check_onednn(joined<Add>({6, 6}), most);
}

TEST_CASE("Concat under every split equals one rank") {
  const auto most = [](int channels) {
    return Split{.channel = channels, .height = 9, .width = 8};
  };
  check_all(joined<Concat>({5, 3, 2}), most(10));
  check_all(joined<Concat>({5, 3}), most(8), 1e-10, {}, {2, 3, 4});
  check_onednn(joined<Concat>({8, 16}), most(24));  // whole blocks
  check_onednn(joined<Concat>({5, 3, 2}), most(10));
}

TEST_CASE("Concat takes those channels of each input that a rank has in y") {
  const Concat concat({});
  const Shape x{2, 5, 3, 3}, z{2, 3, 3, 3}, w{2, 2, 3, 3};
  const std::vector<Shape> xs{x, z, w};
  const auto channels = [&](std::size_t i, int ways) {
    std::vector<Part> parts;
    const Blocks blocks = concat.input_blocks(i, xs, {.channel = ways}, ways + 1);
    CHECK(blocks.whole == xs[i]);
    for (std::size_t r = 0; r < blocks.box.size(); ++r) {
      parts.push_back(blocks.box[r].c);
      CHECK((blocks.number[r] < 0) == blocks.box[r].empty());
    }
    return parts;
  };
  using Parts = std::vector<Part>;
  // y: 4 + 3 + 3, and a rank that takes no part.
  CHECK(channels(0, 3) == Parts{{0, 4}, {4, 1}, {}, {}});
  CHECK(channels(1, 3) == Parts{{}, {0, 2}, {2, 1}, {}});
  CHECK(channels(2, 3) == Parts{{}, {}, {0, 2}, {}});
}

TEST_CASE("branches that are split otherwise than their sum or their concatenation") {
  const StepOn o{.splits = {{"first", {.height = 2, .width = 2}},
                            {"branch0", {.channel = 2}},
                            {"branch1", {.batch = 3}},
                            {"branch2", {.channel = 2, .input = 2}},
                            {"it", {.channel = 4}},
                            {"then", {.input = 2, .height = 2}}}};
  CHECK(apart(4, joined<Concat>({5, 3, 2}), o) < 1e-10);
  CHECK(apart(4, joined<Add>({5, 5, 5}), o) < 1e-10);
}

TEST_CASE("Flatten under every split equals one rank") {
  check_all(flattened, {.channel = 5});
  check_onednn(flattened, {.channel = 5});
}

TEST_CASE("Flatten cuts whole channels") {
  const std::vector<Shape> x{{2, 5, 2, 3}};
  const Blocks y = Flatten({}).output_blocks(x, {.channel = 2}, 3);
  CHECK(y.whole == Shape{2, 30, 1, 1});
  CHECK(y.box[0] == Box{{0, 2}, {0, 18}, {0, 1}, {0, 1}});
  CHECK(y.box[1] == Box{{0, 2}, {18, 12}, {0, 1}, {0, 1}});
  CHECK(y.box[2] == Box{});
  // 6 parts of y would be whole channels no more.
  const auto place = [] { step_on(6, flattened, {.splits = {{"it", {.channel = 6}}}}); };
  CHECK_THROWS_WITH(place(),
                    ContainsSubstring("channel:6: there are only 5 to be cut: a part of y is "
                                      "whole channels of x"));
}

TEST_CASE("what BatchNorm sends where rows are cut") {
  const std::vector<Shape> x{{8, 6, 4, 4}};
  const Split split{.batch = 2, .channel = 3, .height = 2};
  const Cost local = BatchNorm({}).cost(x, split, DType::f32);
  const Cost global = BatchNorm({.global = true}).cost(x, split, DType::f32);
  CHECK(local.forward.flops == 7 * 4 * 2 * 2 * 4);
  CHECK(local.parameters == 4);
  for (const Cost* c : {&local, &global}) {
    REQUIRE(c->messages.size() == 3);
    CHECK((c->messages[0].bytes == 4 * 4 && split.ways(c->messages[0].axes) == 4));
    for (const std::size_t sums : {1u, 2u}) {
      CHECK(c->messages[sums].bytes == 2 * 2 * 8);
      CHECK(split.ways(c->messages[sums].axes) == (c == &local ? 2 : 4));
    }
  }
}

TEST_CASE("ranks that hold nothing of a value share what is sent of it as the others do") {
  if (!has_onednn()) return;
  // What one rank computes alone it makes plain before it sends it; the others have nothing to make
  // plain. Both readers get it by one exchange, on all ranks.
  const auto build = [] {
    Network net({.c = 3, .h = 9, .w = 8});
    const Node x = net.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "alone");
    const Node y = x.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "branch");
    net.join<Add>({y, x}, {}, "sum");
    return ending(std::move(net));
  };
  for (const int ranks : {2, 3})
    CHECK(apart(ranks, build,
                {.backend = "onednn", .dtype = DType::f32, .splits = {{"alone", {}}}}) < 1e-4);
}
