// What steps are predicted to take: against sums and recursions done by hand.
#include "catch.hpp"
#include "support/clusters.hpp"

#include <lamina/cost/group.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/detail/step_parts.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/plan/step_model.hpp>

#include <algorithm>
#include <numeric>

using namespace lamina;
using lamina::test::slow_cluster;

namespace {

StepModel model_of(const Network& net, const Cluster& cluster, int ranks, PlaceOptions options,
                   const UpdateRule& rule = {.momentum = 0.9}) {
  return {net, std::move(options), rule, cluster, ranks, std::make_shared<FormulaTimes>(cluster)};
}

Network two_linear() {
  Network net({.c = 64});
  net.add<Linear>({.features = 96}, "a");
  net.add<Linear>({.features = 32}, "b");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// The step under the splits of a built-in plan.
PredictedStep under(StepModel& model, std::string_view plan) {
  const auto& net = model.network();
  const std::int64_t batch = model.options().batch;
  return model.predict(model.select(
      splits_of(decide(built_in_plan(plan, net, batch, model.ranks()), net, batch, true))));
}

double roofline(const Work& w, double rate) {
  return w.flops + w.bytes > 0 ? 1e-6 + std::max((w.flops - w.padding) / rate, w.bytes / 1e9) : 0;
}

}  // namespace

TEST_CASE("one device: a step is the sum of its kernels") {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "conv");
  net.add<BatchNorm>({}, "bn");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 10}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const int micro_batches = GENERATE(1, 3);
  StepModel model = model_of(net, slow_cluster(1), 1, {.batch = 4, .micro_batches = micro_batches});
  double once = 0, updates = 0;
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    const Cost c = v.layer->cost(net.input_shapes(v, 4), {}, DType::f32);
    const double rate = v.name == "conv" ? 2e9 : 1e9;
    once += roofline(c.forward, rate) + roofline(c.weight_grad, rate);
    if (v.name != "conv") once += roofline(c.input_grad, rate);  // nobody wants that of the input
    updates += 5 * 4 * c.parameters / 1e9;
  }
  const PredictedStep step = under(model, "data");
  CHECK(step.seconds == Approx(micro_batches * once + updates).epsilon(1e-12));
  CHECK(step.total().seconds() == Approx(step.seconds).epsilon(1e-12));
  CHECK(step.layers.at(1).kernels.input_grad == 0);
}

TEST_CASE("gradients are summed behind backward, bucket by bucket") {
  const double contention = GENERATE(1.0, 1.25);
  const bool apart = GENERATE(true, false);
  const Network net = two_linear();
  const double mb = apart ? 0 : 25;
  StepModel model = model_of(net, slow_cluster(2, contention), 2,
                             {.batch = 32, .bucket_mb = mb, .first_bucket_mb = mb});
  const Cluster cluster = slow_cluster(2, contention);
  Cost a, b, loss;
  const auto cost = [&](int v) {
    const auto& vertex = net.graph()[std::size_t(v)];
    return vertex.layer->cost(net.input_shapes(vertex, 32), {.batch = 2}, DType::f32);
  };
  a = cost(1), b = cost(2), loss = cost(3);
  const auto all_reduce = [&](double bytes) {
    return collective_time(cluster, Collective::all_reduce, bytes, {0, 1});
  };
  double t = roofline(a.forward, 1e9) + roofline(b.forward, 1e9) + roofline(loss.forward, 1e9) +
             all_reduce(40);
  t += roofline(loss.input_grad, 1e9) + roofline(loss.weight_grad, 1e9);
  t += roofline(b.input_grad, 1e9) + roofline(b.weight_grad, 1e9);
  const double bytes_a = 4 * a.parameters, bytes_b = 4 * b.parameters;
  const double first = apart ? t + all_reduce(bytes_b) : 0;  // when b's sum is there
  double kernel = roofline(a.weight_grad, 1e9);
  if (apart && kernel * contention <= first - t)  // all of it beside the sum
    kernel *= contention;
  else if (apart)
    kernel = (first - t) + kernel - (first - t) / contention;
  const double done = t + kernel;
  const double second = std::max(done, first) + all_reduce(apart ? bytes_a : bytes_a + bytes_b);
  const double update_a = 5 * bytes_a / 1e9, update_b = 5 * bytes_b / 1e9;
  double end = second + update_a + update_b;
  if (apart) {  // b is updated while a's sum is under way
    const double begin = std::max(done, first);
    const double slow = std::min(update_b * contention, std::max(0.0, second - begin));
    end = std::max(begin + slow + update_b - slow / contention, second) + update_a;
  }
  CHECK(under(model, "data").seconds == Approx(end).epsilon(1e-12));
}

TEST_CASE("what a plan moves between layers is what the formulas say") {
  const Network net = two_linear();
  const Cluster cluster = slow_cluster(4);
  StepModel model = model_of(net, cluster, 4, {.batch = 32});
  // a by samples, b by output channels: each rank gets the three quarters of y that it lacks, and
  // gives back as much of dy.
  const PredictedStep step =
      model.predict(model.select({{.batch = 4}, {.batch = 4}, {.channel = 4}, {.channel = 4}}));
  const double lacking = 4.0 * 32 * 96 * 3 / 4;
  const Link link = cluster.across_with(cluster.devices_per_node);
  const double there = 3 * link.latency + lacking / link.bandwidth;
  // Of the gradient every rank holds a whole copy already, summed over the ranks.
  CHECK(step.layers[2].redistribution == Approx(there).epsilon(1e-12));
  CHECK(step.layers[2].collectives > 0);
  CHECK(step.layers[1].redistribution == 0);
  CHECK(step.total().seconds() == Approx(step.seconds).epsilon(1e-12));
}

TEST_CASE("among many ranks, too, what is shared out takes as long as what is gathered") {
  const Shape whole{64, 6, 5, 4};
  const double element = 4;
  for (const int ranks : {16, 17, 32, 64}) {
    const Cluster cluster = slow_cluster(ranks);
    const Link link = cluster.across_with(1);
    const auto message = [&](double bytes) { return link.latency + bytes / link.bandwidth; };
    detail::Arrangements all(cluster);
    const auto of = [&](const Split& split) {
      return Blocks::of(whole, split, split.axes(), ranks);
    };
    const std::vector<Blocks> some = {of({}), of({.batch = ranks}), of({.channel = 2}),
                                      of({.batch = ranks / 2, .channel = 2}), of({.batch = 3})};
    CHECK(all.seconds(all.number(some[0]), all.number(some[1]), element) ==
          Approx((ranks - 1) * message(element * double(whole.size()) / ranks)).epsilon(0.1));
    // The busiest rank, by all that each gives and gets. Up to 16 ranks rounds make it longer.
    for (const Blocks& held : some)
      for (const Blocks& wanted : some) {
        std::vector<double> gives(std::size_t(ranks), 0), gets = gives;
        each_overlap(copies_of(held), copies_of(wanted),
                     [&](const Copies& have, const Copies& want, const Box& both) {
                       for (const int to : want.ranks) {
                         const int from = have.nearest(to);
                         if (from == to) continue;
                         const double seconds = message(element * double(both.size()));
                         gives[std::size_t(from)] += seconds, gets[std::size_t(to)] += seconds;
                       }
                     });
        const double busiest =
            std::max(*std::ranges::max_element(gives), *std::ranges::max_element(gets));
        const double found = all.seconds(all.number(held), all.number(wanted), element);
        CAPTURE(ranks, busiest, found);
        CHECK(found <= (ranks > 16 ? 1 + 1e-12 : 3) * busiest);
        CHECK(found >= (ranks > 16 ? 0.8 : 1 - 1e-12) * busiest);
      }
  }
}

TEST_CASE("what several layers want alike is brought once") {
  Network net({.c = 8, .h = 8, .w = 8});
  const Node x = net.add<Conv2D>({.channels = 8}, "x");
  const Node l = x.add<Conv2D>({.channels = 8}, "l"), r = x.add<Conv2D>({.channels = 8}, "r");
  net.join<Add>({l, r}, {}, "sum");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  StepModel model = model_of(net, slow_cluster(2), 2, {.batch = 4});
  const Split rows{.height = 2}, data{.batch = 2};
  const PredictedStep step = model.predict(model.select({data, data, rows, rows, rows, data}));
  CHECK(step.layers[2].redistribution > 0);
  CHECK(step.layers[3].redistribution == 0);
}

TEST_CASE("without others to wait for, the sum of the graph is the step") {
  for (const char* name : {"lenet", "resnet20"}) {
    const Network net = make_model(name);
    StepModel model = model_of(net, slow_cluster(1), 1, {.batch = 8});
    const Selection only(net.graph().size(), 0);
    CHECK(seconds_of(model.graph(), only) == Approx(model.seconds(only)).epsilon(1e-12));
  }
}

TEST_CASE("all that a step takes belongs to a layer") {
  for (const char* name : {"lenet", "alexnet", "resnet20"})
    for (const int ranks : {2, 4})
      for (const bool shards : {false, true}) {
        const Network net = make_model(name);
        PlaceOptions options{.batch = 16, .shard_optimizer = shards, .micro_batches = 2};
        options.recompute.assign(net.graph().size(), true);
        StepModel model = model_of(net, slow_cluster(ranks, 1.3), ranks, options);
        for (const std::string_view plan : plan_names()) {
          INFO(name << " on " << ranks << " under " << plan);
          const PredictedStep step = under(model, plan);
          CHECK(step.total().seconds() == Approx(step.seconds).epsilon(1e-12));
          CHECK(step.seconds > 0);
        }
      }
}

TEST_CASE("a sharded optimizer updates parts and gathers the whole") {
  const Network net = two_linear();
  const Cluster cluster = slow_cluster(2);
  PlaceOptions options{.batch = 2};
  StepModel whole = model_of(net, cluster, 2, options);
  options.shard_optimizer = true;
  StepModel parts = model_of(net, cluster, 2, options);
  const PredictedLayer a = under(whole, "data").total(), b = under(parts, "data").total();
  CHECK(b.kernels.update == Approx(a.kernels.update / 2).epsilon(1e-12));
  CHECK(b.gradients > 0);
}

TEST_CASE("unlike devices take as long as the slowest of them, by its share") {
  Cluster cluster = slow_cluster(1);
  cluster.nodes.push_back(cluster.nodes[0]);
  cluster.nodes[1].device.flops[0].gemm = 3e9, cluster.nodes[1].device.bandwidth = 3e9;
  const Network net = two_linear();
  const FormulaTimes times(cluster);
  const auto& a = net.graph()[1];
  const auto forward = [&](const Split& split) {
    return times.of(*a.layer, net.input_shapes(a, 64), split, DType::f32, {}).forward - 1e-6;
  };
  Split uneven{.batch = 2};
  uneven.shares.batch = {1, 3};
  CHECK(forward(uneven) == Approx(forward({.batch = 2}) / 2).epsilon(1e-12));
}

TEST_CASE("what repeats is found by its surroundings") {
  const Network net = make_model("resnet20");
  const StepModel model = model_of(net, slow_cluster(2), 2, {.batch = 8});
  const std::vector<int> groups = model.repeated();
  const auto vertex = [&](std::string_view name) {
    const auto at = std::ranges::find(net.graph(), name, &Network::Vertex::name);
    REQUIRE(at != net.graph().end());
    return groups[std::size_t(at - net.graph().begin())];
  };
  CHECK(vertex("layer1.1.conv1") != vertex("layer2.1.conv1"));
  CHECK(vertex("layer1.1.conv1") != vertex("layer1.1.conv2"));
  const int all = *std::ranges::max_element(groups) + 1;
  CHECK(all < int(groups.size()));
  std::vector<bool> seen(std::size_t(all), false);
  for (const int g : groups) seen[std::size_t(g)] = true;
  CHECK(std::ranges::count(seen, false) == 0);
}

TEST_CASE("impossible models are refused") {
  const Network net = two_linear();
  CHECK_THROWS_WITH(model_of(net, slow_cluster(2), 3, {.batch = 6}),
                    "cluster slow has 2 devices: expected from 1 to as many ranks, got 3");
  Cluster broken = slow_cluster(2);
  broken.across.bandwidth = 0;
  CHECK_THROWS_AS(model_of(net, broken, 2, {.batch = 6}), Error);
  StepModel model = model_of(net, slow_cluster(2), 2, {.batch = 6});
  CHECK_THROWS_WITH(model.select({{}, {}, {}}), "expected a split for each of 4 vertices, got 3");
  CHECK_THROWS_AS(model.select({{.batch = 2}, {.height = 2}, {.batch = 2}, {.batch = 2}}), Error);
}

TEST_CASE("all waiting belongs to a pass") {
  const auto layer = [](const PredictedStep& step, int v) {
    return step.layers.at(std::size_t(v));
  };
  const Network net = two_linear();
  const auto step_of = [&](const Split& a, const Split& b, bool shards = false) {
    StepModel model = model_of(net, slow_cluster(2), 2, {.batch = 32, .shard_optimizer = shards});
    return model.predict(model.select({{.batch = 2}, a, b, {.batch = 2}}));
  };
  // Parts of y are summed in forward, parts of dx in the pass that makes them.
  const PredictedLayer a = layer(step_of({.batch = 2}, {.input = 2}), 2);
  CHECK(a.collectives > 0);
  CHECK(a.waiting.forward == Approx(a.collectives));
  const PredictedLayer b = layer(step_of({.batch = 2}, {.channel = 2}), 2);
  CHECK(b.collectives > 0);
  CHECK(b.waiting.input_grad == Approx(b.collectives));
  const PredictedLayer data = layer(step_of({.batch = 2}, {.batch = 2}), 1);
  CHECK(data.gradients > 0);
  CHECK(data.waiting.weight_grad == Approx(data.gradients));
  const PredictedLayer sharded = layer(step_of({.batch = 2}, {.batch = 2}, true), 1);
  CHECK(sharded.waiting.update > 0);
  CHECK(sharded.waiting.weight_grad + sharded.waiting.update == Approx(sharded.gradients));

  const Network lenet = make_model("lenet");
  for (const char* plan : {"data", "owt", "spatial", "filter"}) {
    std::vector<bool> recompute(lenet.graph().size(), true);
    recompute.front() = recompute.back() = false;
    StepModel model = model_of(lenet, slow_cluster(2), 2, {.batch = 4, .recompute = recompute});
    for (const PredictedLayer& l : under(model, plan).layers)
      CHECK(l.waiting.total() == Approx(l.collectives + l.halo + l.gradients).margin(1e-15));
  }
}

TEST_CASE("where several layers read an output, its gradients are added up first") {
  Network net({.c = 3, .h = 8, .w = 8});
  const Node x = net.input()
                     .add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv")
                     .add<ReLU>({}, "first");
  const Node y = x.add<ReLU>({}, "second");
  net.join<Add>({x, y, x.add<ReLU>({}, "third")}, {}, "add")
      .add<Linear>({.features = 4}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  const int micro_batches = GENERATE(1, 2);
  StepModel model = model_of(net, slow_cluster(1), 1, {.batch = 2, .micro_batches = micro_batches});
  const PredictedStep step = under(model, "data");
  const auto seconds = [&](std::string_view name) {
    const auto at = std::ranges::find(step.layers, name, &PredictedLayer::name);
    REQUIRE(at != step.layers.end());
    return at->kernels.input_grad;
  };
  CHECK(seconds("second") == Approx(seconds("third")));
  const Shape of_first{2, 4, 8, 8};
  const Work sum = Add({}).cost(std::vector<Shape>(3, of_first), {}, DType::f32).forward;
  CHECK(sum.bytes == 4.0 * 4 * double(of_first.size()));
  const double once = roofline(sum, 1e9);
  CHECK(seconds("first") - seconds("second") == Approx(micro_batches * once));
  const Selection data = model.select(std::vector<Split>(net.graph().size()));
  double all = 0;
  const CostGraph graph = model.graph();
  for (std::size_t v = 0; v < data.size(); ++v) all += graph.seconds[v][std::size_t(data[v])];
  CHECK(all == Approx(step.seconds));
}

TEST_CASE("what is marked to be computed once more costs that where backward reads it") {
  const std::string name = GENERATE("lenet", "resnet20");
  const Network net = make_model(name);
  std::vector<bool> marked(net.graph().size());
  const bool all = GENERATE(false, true);
  for (std::size_t v = 1; v < marked.size(); ++v)
    marked[v] = all || net.graph()[v].layer->type() == "Conv2D" ||
                net.graph()[v].layer->type() == "BatchNorm";
  const PlacedNetwork placed =
      net.place({.batch = 4, .backend = reference_backend(), .recompute = marked});
  StepModel model = model_of(net, slow_cluster(1), 1, {.batch = 4, .recompute = marked});
  const PredictedStep predicted = under(model, "data");
  int idle = 0;
  for (const Step& step : placed.steps()) {
    if (!step.layer || step.inserted() || !marked[std::size_t(step.vertex)]) continue;
    INFO(step.name);
    const LayerSeconds& kernels = predicted.layers[std::size_t(step.vertex)].kernels;
    if (kernels.forward > 0) CHECK((kernels.recompute > 0) == step.recomputed);
    idle += !step.recomputed;
  }
  CHECK(idle > 0);
}
