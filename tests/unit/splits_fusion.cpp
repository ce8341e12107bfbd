// Layers that others' kernels have absorbed: the loss and every gradient are those of the same
// network with a kernel for each layer, on one rank.
#include "catch.hpp"
#include "support/splits.hpp"

#include <algorithm>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What absorbs, and the layers behind it that it may absorb.
struct Pattern {
  std::string name;
  Network (*build)();
  std::vector<std::string> absorbed;
  Split most = {.channel = 8, .height = 9, .width = 8};
};

Node start(Network& net) {
  return net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "first");
}

/// Its gradients tell whether dx is right.
void finish(Network& net) {
  if (net.graph().back().shape.h > 1)
    net.add<Conv2D>({.channels = 4, .kernel = 2, .stride = 2, .pad = 1}, "then");
  net.add<Linear>({.features = 5}, "fc");
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
}

/// A convolution whose gradients tell whether that of an operand is right.
/// In front of batch norm a bias would have no gradient but rounding errors.
Node branch(Node x, const char* name, bool bias = true) {
  return x.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = bias}, name);
}

Node norm(Node x) { return x.add<BatchNorm>({.global = true, .scale = 2}, "it"); }

Network norm_relu() {
  Network net({.c = 3, .h = 9, .w = 8});
  norm(start(net)).add<ReLU>({}, "act");
  finish(net);
  return net;
}

Network norm_leaky() {
  Network net({.c = 3, .h = 9, .w = 8});
  norm(start(net)).add<LeakyReLU>({.slope = 0.3}, "act");
  finish(net);
  return net;
}

Network norm_add() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net), other = branch(x, "other");
  net.join<Add>({other, norm(x)}, {}, "add").add<Tanh>();
  finish(net);
  return net;
}

/// As residual blocks have it: the block's input is added, which others read, too.
Network norm_add_relu() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net);
  net.join<Add>({norm(branch(x, "other", false)), x}, {}, "add").add<ReLU>({}, "act");
  finish(net);
  return net;
}

/// Two layers read its y, whose gradient then comes in two parts.
Network norm_add_relu_of_two() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net);
  const Node y =
      net.join<Add>({norm(branch(x, "other", false)), x}, {}, "add").add<ReLU>({}, "act");
  net.join<Add>({y.add<Tanh>({}, "tanh"), y.add<Sigmoid>({}, "sigmoid")}, {}, "both");
  finish(net);
  return net;
}

/// What is added has no gradient, and nowhere to leave the sum of the two parts.
Network norm_add_image_relu_of_two() {
  Network net({.c = 8, .h = 9, .w = 8});
  const Node x = net.input();
  const Node y =
      net.join<Add>({norm(branch(x, "other", false)), x}, {}, "add").add<ReLU>({}, "act");
  net.join<Add>({y.add<Tanh>({}, "tanh"), y.add<Sigmoid>({}, "sigmoid")}, {}, "both");
  finish(net);
  return net;
}

/// Its y is added to another value, with which it shares a gradient that nobody may write to.
Network shared_gradient() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net), other = branch(x, "other", false), more = branch(x, "more");
  const Node y = net.join<Add>({norm(other), x}, {}, "add").add<ReLU>({}, "act");
  net.join<Add>({more, y}, {}, "sum");
  finish(net);
  return net;
}

Network conv_relu() {
  Network net({.c = 3, .h = 9, .w = 8});
  branch(start(net), "it").add<ReLU>({}, "act");
  finish(net);
  return net;
}

Network conv_add_leaky() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net), other = branch(x, "other");
  net.join<Add>({branch(x, "it"), other}, {}, "add").add<LeakyReLU>({.slope = 0.2}, "act");
  finish(net);
  return net;
}

Network linear_relu() {
  Network net({.c = 3, .h = 9, .w = 8});
  start(net).add<Linear>({.features = 7}, "it").add<ReLU>({}, "act");
  finish(net);
  return net;
}

Network linear_add() {
  Network net({.c = 3, .h = 9, .w = 8});
  const Node x = start(net), other = x.add<Linear>({.features = 7}, "other");
  net.join<Add>({other, x.add<Linear>({.features = 7}, "it")}, {}, "add").add<Tanh>();
  finish(net);
  return net;
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"norm, relu", norm_relu, {"act"}},
      {"norm, leaky relu", norm_leaky, {"act"}},
      {"norm, add", norm_add, {"add"}},
      {"norm, add, relu", norm_add_relu, {"add", "act"}},
      {"norm, add, relu, which two layers read", norm_add_relu_of_two, {"add", "act"}},
      {"norm, add the image, relu, which two layers read",
       norm_add_image_relu_of_two,
       {"add", "act"}},
      {"norm, add, relu, with a shared gradient", shared_gradient, {"add", "act"}},
      {"conv, relu", conv_relu, {"act"}},
      {"conv, add, leaky relu", conv_add_leaky, {"add", "act"}},
      {"linear, relu", linear_relu, {"act"}, {.channel = 7}},
      {"linear, add", linear_add, {"add"}, {.channel = 7}}};
  return all;
}

Whole check_absorbed(const Pattern& p, const StepOn& o, int ranks, const Whole& expected,
                     double tolerance) {
  const Whole whole = step_on(ranks, p.build, o);
  std::string where;
  const double d = difference(expected, whole, &where);
  INFO(where);
  CHECK(d < tolerance);
  CHECK(whole.absorbed == int(p.absorbed.size()));
  return whole;
}

/// All layers of the pattern split alike, in every way.
void check_splits(const Pattern& p, StepOn fused, const Whole& expected, double tolerance,
                  const std::vector<int>& on) {
  for (const int ranks : on)
    for (const Split& split : all_splits(ranks, all_but_input)) {
      if ((split.ways() != ranks && split.ways() != ranks - 1) || !within(split, p.most)) continue;
      INFO(ranks << " ranks, " << split.text());
      fused.splits["it"] = split;
      for (const std::string& name : p.absorbed) fused.splits[name] = split;
      check_absorbed(p, fused, ranks, expected, tolerance);
    }
}

/// On one rank, and split.
void check_pattern(const Pattern& p, const StepOn& base, double tolerance,
                   const std::vector<int>& on) {
  INFO(p.name);
  const Whole apart = step_on(1, p.build, base);
  CHECK(apart.absorbed == 0);
  StepOn fused = base;
  fused.fuse = true;
  check_absorbed(p, fused, 1, apart, tolerance);
  check_splits(p, fused, apart, tolerance, on);
}

Pattern most_of(Pattern p, std::int64_t batch) {
  p.most.batch = int(batch);
  return p;
}

}  // namespace

TEST_CASE("absorbed layers under every split give what layers by themselves give") {
  for (const Pattern& p : patterns()) check_pattern(most_of(p, 10), {}, 1e-10, {2, 3, 4});
}

TEST_CASE("absorbed layers under every split are right on the fast back end", "[host]") {
  if (!has_onednn()) return;
  for (const Pattern& p : patterns())
    check_pattern(most_of(p, 10), {.backend = "onednn", .dtype = DType::f32}, 1e-4, {2, 4});
}

TEST_CASE("absorbed layers under every split are right in bf16", "[host]") {
  if (!has_onednn()) return;
  for (const Pattern& pattern : patterns()) {
    const Pattern p = most_of(pattern, 10);
    INFO(p.name);
    // What is not rounded in between is on the other side of a kink here and there.
    StepOn o{.backend = "onednn", .dtype = DType::bf16};
    const Whole exact = step_on(1, p.build, {}), apart = step_on(1, p.build, o);
    CHECK(apart.absorbed == 0);
    const double off = difference(exact, apart);
    CHECK(off < 0.2);
    o.fuse = true;
    const Whole fused = check_absorbed(p, o, 1, apart, 2 * off);
    CHECK(difference(exact, fused) < 2 * off);
    check_splits(p, o, fused, 0.02 + off / 2, {2, 3});
  }
}

TEST_CASE("absorbed layers that are recomputed give the same") {
  for (const Pattern& p : patterns()) {
    INFO(p.name);
    const std::size_t size = p.build().graph().size();
    const Whole apart = step_on(1, p.build, {});
    StepOn again{.fuse = true, .recompute = std::vector<bool>(size, true)};
    again.recompute[0] = false;
    for (const int ranks : {1, 2}) {
      const Whole whole = step_on(ranks, p.build, again);
      CHECK(difference(apart, whole) < 1e-10);
      CHECK(whole.absorbed == int(p.absorbed.size()));
    }
  }
}

TEST_CASE("absorbed layers give the same in inference") {
  for (const Pattern& p : patterns()) {
    INFO(p.name);
    const Whole apart = step_on(1, p.build, {.training = false});
    const Whole whole = step_on(2, p.build, {.training = false, .fuse = true});
    CHECK(difference(apart, whole) < 1e-10);
  }
}

TEST_CASE("where ranks add up y nothing is absorbed") {
  const Whole apart = step_on(1, conv_relu, {});
  for (const Split& its : {Split{.input = 2}, Split{.batch = 2, .input = 2}}) {
    const Whole whole = step_on(
        4, conv_relu, {.splits = {{"it", its}, {"act", {.batch = its.batch}}}, .fuse = true});
    CHECK(whole.absorbed == 0);
    CHECK(difference(apart, whole) < 1e-10);
  }
}
