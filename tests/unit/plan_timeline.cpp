// What waits for what in a step: layers that cost round numbers of seconds, and steps reckoned by
// hand.
#include "catch.hpp"
#include "support/clusters.hpp"
#include "support/random_plans.hpp"

#include <lamina/network/predict.hpp>
#include <lamina/plan/step_model.hpp>

using namespace lamina;

namespace {

/// A layer that costs what a test says, the same under all splits.
class Made final : public Layer {
 public:
  struct Options {
    LayerSeconds seconds = {};
    std::vector<Message> messages = {};
    bool multiplies = false;
    double parameters = 1;
  };
  explicit Made(Options o) : of(std::move(o)) {}

  std::string_view type() const override { return "Made"; }
  std::string options() const override { return text(std::uintptr_t(this)); }  // none are alike
  bool multiplies() const override { return of.multiplies; }
  Axis splits() const override { return all_but_input; }
  Shape output(std::span<const Shape> xs) const override { return xs[0]; }
  Cost cost(std::span<const Shape>, const Split&, DType) const override {
    return {.parameters = of.parameters, .messages = of.messages};
  }
  /// Where it is only imagined: backward reads x.
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    struct Placed final : PlacedLayer {
      void forward(Context&, std::span<const View>, const View&) override {}
      void backward(Context&, std::span<const View>, const View&, const View&,
                    std::span<const View>) override {}
      std::vector<Parameter*> parameters() override { return {&b}; }
      Parameter b;
    };
    auto placed = std::make_unique<Placed>();
    placed->b = {.name = "b",
                 .dims = {1},
                 .form = {{1, 1, 1, 1}, xs[0].dtype, {}},
                 .replicas = site.along(Axis::batch)};
    Placement p;
    p.inputs = {xs[0].form()}, p.output = xs[0].form();
    p.layer = std::move(placed);
    return p;
  }

  const Options of;
};

struct MadeTimes final : LayerTimes {
  LayerSeconds of(const Layer& layer, std::span<const Shape>, const Split&, const Cost&,
                  const Precision&, const UpdateRule&) const override {
    const auto* made = dynamic_cast<const Made*>(&layer);
    return made ? made->of.seconds : LayerSeconds();  // a sum of gradients
  }
};

/// Devices one on a node; a second for a byte, and two in an all-reduce.
Cluster a_byte_a_second(int devices, double contention = 1) {
  Cluster c = test::slow_cluster(devices, contention);
  for (const int stride : {1, 2}) {
    c.measured.push_back({Collective::all_reduce, 2, stride, 1, 2});
    for (const Collective op :
         {Collective::reduce_scatter, Collective::all_gather, Collective::halo})
      c.measured.push_back({op, 2, stride, 1, 1});
  }
  return c;
}

/// An all-reduce takes 10 s, however many bytes it has: layers have their parts of their bucket's.
Cluster ten_seconds_a_sum(int devices) {
  Cluster c = test::slow_cluster(devices);
  for (const int ranks : {2, 3, 4})
    for (const int stride : {1, 2, 3})
      for (const double bytes : {1.0, 1e9})
        c.measured.push_back({Collective::all_reduce, ranks, stride, bytes, 10});
  return c;
}

constexpr Split halves{.batch = 2}, quarters{.batch = 2, .width = 2};

/// Between the ranks that have different samples.
Message message(Collective op, Pass pass, double bytes, bool once = false) {
  return {op, pass, bytes, Axis::batch, once};
}
/// The sum of a layer's gradients.
Message sum(double bytes, Axis axes = Axis::batch) {
  return {Collective::all_reduce, Pass::weight_grad, bytes, axes};
}

/// The step in which all layers have the same split, over as many ranks as that has parts.
PredictedStep predict(const Network& net, const Cluster& cluster, const Split& split = halves,
                      PlaceOptions options = {}) {
  options.batch = 2;
  StepModel model(net, options, {}, cluster, split.ways(), std::make_shared<MadeTimes>());
  return model.predict(model.select(std::vector<Split>(net.graph().size(), split)));
}

/// One bucket for each layer.
PlaceOptions apart() { return {.bucket_mb = 0, .first_bucket_mb = 0}; }

Network empty() { return Network({.c = 2, .h = 2, .w = 2}); }

}  // namespace

TEST_CASE("kernels are slowed down while something travels, and no longer") {
  // The sum of b's gradients takes 6 s, from 0 on.
  const auto step_of = [](double seconds) {
    Network net = empty();
    net.add<Made>({.seconds = {.weight_grad = seconds}, .messages = {sum(1)}}, "a");
    net.add<Made>({.messages = {sum(3)}}, "b");
    return predict(net, a_byte_a_second(2, 1.25), halves, apart());
  };
  const PredictedStep within = step_of(4);  // 4 * 1.25 s; then a's own sum, from 6 s on
  CHECK(within.layers[1].kernels.weight_grad == Approx(5));
  CHECK(within.seconds == Approx(6 + 2));
  const PredictedStep beyond = step_of(10);  // 6 s for 6 / 1.25 s of work, and 5.2 s alone
  CHECK(beyond.layers[1].kernels.weight_grad == Approx(6 + 5.2));
  CHECK(beyond.seconds == Approx(11.2 + 2));
}

TEST_CASE("gradients are summed in the last micro-batch alone") {
  Network net = empty();
  net.add<Made>({.seconds = {.forward = 1, .weight_grad = 2}, .messages = {sum(1)}}, "a");
  net.add<Made>({.seconds = {.forward = 1, .input_grad = 2, .weight_grad = 3},
                 .messages = {sum(5)},
                 .multiplies = true},
                "b");
  PlaceOptions options = apart();
  options.micro_batches = 3;
  const PredictedStep step = predict(net, a_byte_a_second(2), halves, options);
  CHECK(step.layers[1].reduction == Approx(2));
  CHECK(step.layers[2].reduction == Approx(10));
  // Each micro-batch computes 9 s; b's gradients are there 2 s before the end.
  CHECK(step.seconds == Approx(3 * 9 - 2 + 10 + 2));
}

TEST_CASE("backward goes no further down than what is trained") {
  Network net = empty();
  const Node x = net.add<Made>(
      {.seconds = {.forward = 1, .input_grad = 100, .weight_grad = 100}, .parameters = 0}, "x");
  const Node a = x.add<Made>({.seconds = {.forward = 1, .input_grad = 100, .weight_grad = 2}}, "a");
  net.join<Made>({x, a}, {.seconds = {.input_grad = 3}, .parameters = 0}, "both");
  // Of 2 * 2 * 2 * 2 elements of 4 bytes a rank has one half, and wants another: it lacks 16 bytes.
  Cluster cluster = a_byte_a_second(2);
  cluster.across = {0, 1};
  StepModel model(net, {.batch = 2}, {}, cluster, 2, std::make_shared<MadeTimes>());
  const PredictedStep step = model.predict(model.select({halves, halves, halves, {.height = 2}}));
  CHECK(step.layers[3].redistribution == Approx(2 * 16 + 16));  // back that of a alone
  CHECK(step.seconds == Approx((1 + 1 + 2 * 16) + (3 + 16 + 2)));
}

TEST_CASE("buckets take whole layers of one group until they are full") {
  const PlaceOptions options{.bucket_mb = 200e-6, .first_bucket_mb = 100e-6};
  const Axis other = Axis::width;

  Network net = empty();                                 // backward goes upwards from a
  net.add<Made>({.messages = {sum(30)}}, "h");           // what is left
  net.add<Made>({.messages = {sum(110)}}, "g");          // fills the second one: 220 bytes
  net.add<Made>({.messages = {sum(70)}}, "f");           // does not
  net.add<Made>({.messages = {sum(40, other)}}, "e");    // this group's second one
  net.add<Made>({.messages = {sum(40)}}, "d");           // is no longer in the first one
  net.add<Made>({.messages = {sum(60), sum(30)}}, "c");  // fills it, and is not cut: 150 bytes
  net.add<Made>({.messages = {sum(120, other)}}, "b");   // a group has its own
  net.add<Made>({.messages = {sum(60)}}, "a");
  const PredictedStep step = predict(net, ten_seconds_a_sum(4), quarters, options);
  const std::vector<double> bytes{30, 110, 70, 40, 40, 90, 120, 60};
  const std::vector<double> of{30, 220, 220, 40, 220, 150, 120, 150};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    INFO(step.layers[i + 1].name);
    CHECK(step.layers[i + 1].reduction == Approx(10 * bytes[i] / of[i]));
  }
}

TEST_CASE("halos travel beside kernels of convolutions, of forward unless columns are cut") {
  const bool multiplies = GENERATE(true, false);
  const Split split = GENERATE(halves, quarters);
  CAPTURE(multiplies, split.text());
  Network net = empty();
  net.add<Made>({}, "trained");
  net.add<Made>({.seconds = {.forward = 2, .input_grad = 1, .weight_grad = 3},
                 .messages = {message(Collective::halo, Pass::forward, 3),
                              message(Collective::halo, Pass::input_grad, 4)},
                 .multiplies = multiplies},
                "b");
  const PredictedStep step = predict(net, a_byte_a_second(4), split);
  const bool beside = multiplies && split.width == 1;
  const PredictedLayer& b = step.layers[2];
  const double forward = beside ? 1 : 3;   // 3 s, of which the kernel hides 2
  const double back = multiplies ? 1 : 4;  // 4 s, of which that of dw hides 3
  CHECK(b.waiting.forward == Approx(forward));
  CHECK(b.waiting.input_grad == Approx(back));
  CHECK(b.halo == Approx(forward + back));
  CHECK(step.seconds == Approx(2 + forward + 1 + 3 + back));
}

TEST_CASE("of parts of dx and their halo, parts travel beside the kernel of dw") {
  Network net = empty();
  net.add<Made>({}, "trained");
  net.add<Made>({.seconds = {.input_grad = 1, .weight_grad = 6},
                 .messages = {message(Collective::all_gather, Pass::input_grad, 4),
                              message(Collective::halo, Pass::input_grad, 5), sum(1)},
                 .multiplies = true},
                "b");
  const PredictedStep step = predict(net, a_byte_a_second(2));
  CHECK(step.layers[2].collectives == 0);
  CHECK(step.layers[2].halo == Approx(2 + 5));  // behind the sum of the gradients
  CHECK(step.seconds == Approx(1 + 6 + 2 + 5));
}

TEST_CASE("what makes sums beside dw, as batch norm does, waits for them before dx") {
  const bool has_dx = GENERATE(true, false);
  Network net = empty();
  net.add<Made>({.parameters = has_dx ? 1.0 : 0.0}, "before");
  net.add<Made>({.seconds = {.input_grad = 1, .weight_grad = 6},
                 .messages = {message(Collective::all_gather, Pass::input_grad, 4, true)}},
                "norm");
  const PredictedStep step = predict(net, a_byte_a_second(2));
  CHECK(step.layers[2].collectives == Approx(4));
  CHECK(step.seconds == Approx(6 + 4 + (has_dx ? 1 : 0)));
}

TEST_CASE("a group of all ranks has the same buckets under all splits") {
  Network net = empty();
  net.add<Made>({.messages = {sum(50, Axis::height)}}, "a");
  net.add<Made>({.messages = {sum(50)}}, "b");
  StepModel model(net, {.batch = 2}, {}, ten_seconds_a_sum(2), 2, std::make_shared<MadeTimes>());
  const PredictedStep step = model.predict(model.select({halves, {.height = 2}, halves}));
  CHECK(step.layers[1].reduction == Approx(5));
  CHECK(step.layers[2].reduction == Approx(5));
}

TEST_CASE("what is recomputed sends again what it does not keep") {
  Network net = empty();
  net.add<Made>({}, "trained");
  net.add<Made>({.seconds = {.forward = 2, .recompute = 5},
                 .messages = {message(Collective::all_gather, Pass::forward, 3, true),
                              message(Collective::all_gather, Pass::forward, 4)}},
                "b");
  net.add<Made>({.seconds = {.forward = 1, .recompute = 50}}, "c");
  const PredictedStep step =
      predict(net, a_byte_a_second(2), halves, {.recompute = {false, false, true, false}});
  CHECK(step.layers[2].waiting.forward == Approx(3 + 4));
  CHECK(step.layers[2].waiting.recompute == Approx(4));
  CHECK(step.layers[2].kernels.recompute == Approx(5));
  CHECK(step.seconds == Approx((2 + 3 + 4) + 1 + (5 + 4)));
}

TEST_CASE("a rank updates its part of what its group shares, and gathers the rest") {
  // Two groups of two ranks: they add up 8 bytes, update a half, and gather 8 bytes.
  Network net = empty();
  net.add<Made>({.seconds = {.update = 6}, .messages = {sum(6), sum(2)}}, "a");
  const PredictedStep whole = predict(net, a_byte_a_second(4), quarters);
  CHECK(whole.seconds == Approx(2 * 8 + 6));
  const PredictedStep parts = predict(net, a_byte_a_second(4), quarters, {.shard_optimizer = true});
  CHECK(parts.layers[1].reduction == Approx(8 + 8));
  CHECK(parts.layers[1].kernels.update == Approx(6 / 2));
  CHECK(parts.seconds == Approx(8 + 3 + 8));
}

TEST_CASE("buckets are those of the network where it is placed") {
  // Blocks of whole cache lines, so that nothing is rounded up.
  Network net({.c = 64, .h = 4, .w = 4});
  for (int i = 0; i < 3; ++i) {
    net.add<Conv2D>({.channels = 64, .kernel = 3, .pad = 1});
    net.add<BatchNorm>({});
  }
  for (int i = 0; i < 3; ++i) net.add<Linear>({.features = 64});
  PlaceOptions options{.batch = 8, .bucket_mb = 0.3, .first_bucket_mb = 0.1};
  const Cluster cluster = ten_seconds_a_sum(4);
  std::uint64_t draw = 0;
  for (int i = 0; i < 30; ++i) {
    const int ranks = i % 2 == 0 ? 2 : 4;
    options.splits = test::random_plan(net, ranks, options.batch, Random(7), draw);
    INFO(test::describe(net, options.splits));
    const PlacedNetwork placed = imagine(net, options, 0, ranks);
    std::vector<double> parts(net.graph().size());  // of its bucket, by vertex
    for (const NamedParameter& n : placed.parameters())
      if (const Bucket* b = n.parameter->bucket; b && b->ranks.size() > 1)
        parts[std::size_t(placed.steps()[std::size_t(n.step)].vertex)] +=
            double(n.parameter->room) / double(b->gradients.shape.size());
    StepModel model(net, options, {}, cluster, ranks, std::make_shared<FormulaTimes>(cluster));
    const PredictedStep step = model.predict(model.select(options.splits));
    for (std::size_t v = 1; v < parts.size(); ++v) {
      INFO(step.layers[v].name);
      CHECK(step.layers[v].reduction == Approx(10 * parts[v]));
    }
  }
}

TEST_CASE("sums of gradients take what these have in the type in which they travel") {
  Network net({.c = 1, .h = 8, .w = 1});
  net.add<Made>({.messages = {sum(100)}});  // as if gradients were of the type of the layers
  const auto reduction = [&](PlaceOptions options, int devices_per_node) {
    Cluster cluster = a_byte_a_second(2);
    if (devices_per_node > 1) cluster.nodes[0].count = 1, cluster.devices_per_node = 2;
    options.batch = 2;
    StepModel model(net, options, {}, cluster, 2, std::make_shared<MadeTimes>());
    const PredictedStep step = model.predict(model.select({halves, halves}));
    return step.layers[1].reduction;
  };
  CHECK(reduction({}, 1) == Approx(200));
  CHECK(reduction({.dtype = DType::bf16}, 1) == Approx(400));  // gradients are in f32
  CHECK(reduction({.sent_gradients = DType::bf16}, 1) == Approx(100));
  CHECK(reduction({.dtype = DType::bf16, .sent_gradients = DType::bf16}, 1) == Approx(200));
  CHECK(reduction({.sent_gradients = DType::bf16}, 2) == Approx(200));  // within a node
  // With a sharded optimizer: the sum as it travels, and the weights.
  CHECK(reduction({.sent_gradients = DType::bf16, .shard_optimizer = true}, 1) == Approx(50 + 100));
  CHECK(reduction({.dtype = DType::bf16, .shard_optimizer = true}, 1) == Approx(200 + 100));
}
