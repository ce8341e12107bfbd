// Measured kernel times: what they know, what they say of what they do not, and their file.
#include "catch.hpp"
#include "support/clusters.hpp"

#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/plan/measured_times.hpp>
#include <lamina/plan/step_model.hpp>

#include <algorithm>
#include <array>

using namespace lamina;
using lamina::test::slow_cluster;

namespace {

const ReLU relu({});
const Conv2D conv({.channels = 8, .kernel = 3, .pad = 1});
const std::array conv_x{Shape{8, 4, 16, 16}};

LocalLayer local(const Layer& layer, const std::array<Shape, 1>& xs, const Split& split = {},
                 DType t = DType::f32) {
  return local_layer(layer, xs, split, t);
}

std::string message_of(const std::string& json) {
  MeasuredTimes times(slow_cluster(1));
  try {
    add_measured_json(times, json);
  } catch (const Error& e) {
    CHECK(times.entries().empty());
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a local layer is what its kernels depend on, and nothing else") {
  const LocalLayer whole = local(conv, conv_x);
  CHECK(whole.xs == std::vector{Shape{8, 4, 16, 16}});
  CHECK(whole.y == Shape{8, 8, 16, 16});
  // The same blocks are the same, whatever they are parts of.
  CHECK(local(conv, {Shape{16, 4, 16, 16}}, {.batch = 2}) == whole);
  CHECK(local(conv, {Shape{16, 4, 16, 16}}, {.batch = 2}).text() == whole.text());
  CHECK(local(conv, conv_x, {.input = 2}) == local(conv, {Shape{8, 2, 16, 16}}));
  // With shares the largest part counts, wherever it lies.
  Split shares{.batch = 2};
  shares.shares.batch = {1, 3};
  CHECK(local(conv, {Shape{16, 4, 16, 16}}, shares).y == Shape{12, 8, 16, 16});

  const std::vector<LocalLayer> unlike = {
      whole,
      local(conv, {Shape{4, 4, 16, 16}}),
      local(conv, {Shape{8, 2, 16, 16}}),
      local(conv, {Shape{8, 4, 8, 16}}),
      local(conv, {Shape{8, 4, 16, 8}}),
      local(conv, {Shape{8, 4, 16, 16}}, {.height = 2}),
      local(conv, {Shape{8, 4, 16, 16}}, {.width = 2}),
      local(conv, {Shape{8, 4, 16, 16}}, {.channel = 2}),
      local(conv, conv_x, {}, DType::f64),
      local(Conv2D({.channels = 8, .kernel = 3, .pad = 1, .bias = false}), conv_x),
      local(relu, conv_x),
      local(relu, {Shape{8, 8, 16, 16}}),
  };
  for (std::size_t i = 0; i < unlike.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) {
      INFO(unlike[i].text() << " and " << unlike[k].text());
      CHECK_FALSE(unlike[i] == unlike[k]);
      CHECK(unlike[i].text() != unlike[k].text());
    }
  // Rows that others send are no part of the block, but whether they come matters.
  CHECK(local(conv, {Shape{8, 4, 32, 16}}, {.height = 2}).xs == whole.xs);
  CHECK_FALSE(local(conv, {Shape{8, 4, 32, 16}}, {.height = 2}) == whole);
}

TEST_CASE("what was measured counts, and scales what was not") {
  MeasuredTimes times(slow_cluster(2));
  const UpdateRule rule{.momentum = 0.9};
  const LayerSeconds formula = times.formulas().of(conv, conv_x, {}, DType::f32, rule);
  const auto of = [&](const Layer& layer, Shape x, const Split& split = {}) {
    return times.of(layer, std::array{x}, split, DType::f32, rule);
  };
  // Nothing was measured yet: the formula.
  CHECK(of(conv, conv_x[0]).forward == formula.forward);
  CHECK(of(conv, conv_x[0]).update == formula.update);

  times.add({.layer = local(conv, conv_x),
             .seconds = {.forward = 2 * formula.forward, .input_grad = -1, .weight_grad = 0.5},
             .formula = formula});
  const LayerSeconds known = of(conv, conv_x[0]);
  CHECK(known.forward == 2 * formula.forward);
  CHECK(known.input_grad == formula.input_grad);
  CHECK(known.weight_grad == 0.5);
  CHECK(known.recompute == Approx(2 * formula.recompute));
  CHECK(of(conv, {16, 4, 16, 16}, {.batch = 2}).forward == known.forward);

  // Another one is as far off as that; a layer of another type is not.
  const Shape other{8, 4, 10, 10};
  const auto plain = [&](const Layer& layer, Shape x) {
    return times.formulas().of(layer, std::array{x}, {}, DType::f32, rule);
  };
  CHECK(of(conv, other).forward == Approx(2 * plain(conv, other).forward));
  CHECK(of(conv, other).input_grad == plain(conv, other).input_grad);
  CHECK(of(conv, other).weight_grad ==
        Approx(plain(conv, other).weight_grad * 0.5 / formula.weight_grad));
  CHECK(of(relu, other).forward == plain(relu, other).forward);

  // The nearer of two: 4 x 8 x 8 has 1/4 of the rows and columns, 12 x 12 has 9/16.
  const std::array small{Shape{8, 4, 8, 8}};
  const LayerSeconds f = plain(conv, small[0]);
  times.add({.layer = local(conv, small), .seconds = {3 * f.forward, -1, -1}, .formula = f});
  CHECK(of(conv, {8, 4, 9, 9}).forward == Approx(3 * plain(conv, {8, 4, 9, 9}).forward));
  CHECK(of(conv, {8, 4, 14, 14}).forward == Approx(2 * plain(conv, {8, 4, 14, 14}).forward));
  // Options count as an extent that is 8 times as large.
  const Conv2D bare({.channels = 8, .kernel = 3, .pad = 1, .bias = false});
  const LayerSeconds g = plain(bare, {8, 4, 12, 12});
  times.add({.layer = local(bare, {Shape{8, 4, 12, 12}}),
             .seconds = {5 * g.forward, -1, -1},
             .formula = g});
  CHECK(of(conv, {8, 4, 12, 12}).forward == Approx(2 * plain(conv, {8, 4, 12, 12}).forward));
  CHECK(of(bare, {8, 4, 13, 13}).forward == Approx(5 * plain(bare, {8, 4, 13, 13}).forward));

  // A pass stays as it was measured first; one that was missing is filled in.
  times.add({.layer = local(conv, conv_x), .seconds = {7, 0.25, 7}, .formula = formula});
  CHECK(times.entries().size() == 3);
  CHECK(of(conv, conv_x[0]).forward == 2 * formula.forward);
  CHECK(of(conv, conv_x[0]).input_grad == 0.25);
  CHECK(of(conv, conv_x[0]).weight_grad == 0.5);

  // Updates by their rate: momentum moves 20 bytes a parameter.
  const double bytes = (8 * 4 * 9 + 8) * 20;
  times.add_update("sgd 1 f32 2^24", 4e9), times.add_update("sgd 1 f32 2^24", 1e9);
  times.add_update("adam 2 f32 2^24", 1), times.add_update("sgd 1 f32 2^16", 5e10);
  CHECK(of(conv, conv_x[0]).update == Approx(bytes / 4e9));
  for (const auto& [parameters, rate] :
       {std::pair(1 << 16, 5e10), {(1 << 15) + 1, 5e10}, {1 << 30, 4e9}}) {
    times.updates_are_of(parameters);  // of a network that is in caches, or is not
    CHECK(of(conv, conv_x[0]).update == Approx(bytes / rate));
  }
  times.updates_are_of(1 << 20);
  CHECK(of(conv, conv_x[0]).update == plain(conv, conv_x[0]).update);
  CHECK(update_name(rule, DType::f32, 1000) == "sgd 1 f32 2^10");
  CHECK(update_name({}, DType::f32, 1) == "sgd 0 f32 2^0");
  CHECK(update_name({.kind = UpdateRule::Kind::adamw}, DType::bf16, INT64_C(1) << 40) ==
        text("adamw 2 ", Precision(DType::bf16).text(), " 2^24"));

  CHECK_THROWS_AS(times.add({.layer = local(conv, conv_x), .seconds = {0.0 / 0.0}}), Error);
  CHECK_THROWS_AS(times.add({}), Error);
  CHECK_THROWS_AS(times.add_update("sgd 1", 0), Error);
}

TEST_CASE("a step of measured layers is their sum") {
  Network net({.c = 4, .h = 16, .w = 16});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "conv");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 10}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const Cluster cluster = slow_cluster(1);
  const auto times = std::make_shared<MeasuredTimes>(cluster);
  const UpdateRule rule{.momentum = 0.9};
  double sum = 0, next = 1, parameters = 0;
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    const auto xs = net.input_shapes(v, 8);
    LayerSeconds s{next, 2 * next, 4 * next};
    times->add({.layer = local_layer(*v.layer, xs, {}, DType::f32), .seconds = s});
    sum += s.forward + s.weight_grad + (v.name == "conv" ? 0 : s.input_grad);
    parameters += v.layer->cost(xs, {}, DType::f32).parameters;
    next *= 10;
  }
  times->add_update("sgd 1 f32 2^24", 20);
  StepModel model(net, {.batch = 8}, rule, cluster, 1, times);
  const Selection only(net.graph().size(), 0);
  CHECK(model.seconds(only) == Approx(sum + parameters).epsilon(1e-12));
}

TEST_CASE("measured times as a file come back as they were") {
  MeasuredTimes times(slow_cluster(2));
  times.add(
      {.layer = local(conv, conv_x), .seconds = {1.0 / 3, -1, 1e-7}, .formula = {0.1, 0, 0.7}});
  times.add({.layer = local(relu, conv_x, {.height = 2}), .seconds = {1e-300, 0, 5}});
  LocalLayer join = local(relu, conv_x, {.height = 2, .width = 2});
  join.type = "odd \"type\"\n", join.xs.push_back({1, 2, 3, 4});
  times.add({.layer = join, .seconds = {1, 2, 3}, .formula = {4, 5, 6}});
  times.add_update("sgd 1 f32 2^24", 1e10 / 3);

  MeasuredTimes again(slow_cluster(2));
  add_measured_json(again, measured_json(times));
  REQUIRE(again.entries().size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto &a = times.entries()[i], &b = again.entries()[i];
    CHECK(a.layer == b.layer);
    CHECK(a.seconds.forward == b.seconds.forward);
    CHECK(a.seconds.input_grad == b.seconds.input_grad);
    CHECK(a.seconds.weight_grad == b.seconds.weight_grad);
    CHECK(a.formula.forward == b.formula.forward);
    if (a.seconds.weight_grad >= 0) CHECK(a.formula.weight_grad == b.formula.weight_grad);
  }
  CHECK(again.updates() == times.updates());
  CHECK(measured_json(again) == measured_json(times));
}

TEST_CASE("damaged measured times are refused whole, and named") {
  MeasuredTimes times(slow_cluster(1));
  times.add({.layer = local(relu, conv_x), .seconds = {1, 2, 3}});
  times.add({.layer = local(conv, conv_x), .seconds = {1, 2, 3}});
  times.add_update("sgd 1", 2);
  const std::string good = measured_json(times);
  CHECK(message_of(good).empty());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string s = good;
    const auto at = s.rfind(from);
    REQUIRE(at != std::string::npos);
    return message_of(s.replace(at, from.size(), to));
  };
  CHECK_THAT(with("\"lamina-layer-times\"", "\"lamina-plan\""), ContainsSubstring("schema"));
  CHECK_THAT(with("\"version\": 2", "\"version\": 1"), ContainsSubstring("version"));
  CHECK_THAT(with("\"seconds\": 3.0", "\"seconds\": -3.0"),
             ContainsSubstring("layers[1].weight_grad.seconds"));
  CHECK_THAT(with("\"seconds\": 3.0", "\"seconds\": \"3\""),
             ContainsSubstring("layers[1].weight_grad.seconds"));
  CHECK_THAT(with("\"type\": \"Conv2D\"", "\"typo\": \"Conv2D\""), ContainsSubstring("type"));
  CHECK_THAT(with("\"halo\": 0", "\"halo\": 25"), ContainsSubstring("layers[1].halo"));
  CHECK_THAT(with("\"bytes_per_second\": 2.0", "\"bytes_per_second\": 0"),
             ContainsSubstring("updates[0].bytes_per_second"));
  CHECK_FALSE(message_of(good.substr(0, good.size() / 2)).empty());
  CHECK_FALSE(message_of("").empty());
}
