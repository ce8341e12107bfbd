// What the rows of a profile say that a step computes, moves and sends, against counts by hand.
#include "catch.hpp"
#include "support/splits.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/concat.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/global_avg_pool.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/pad_channels.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/layers/tanh.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/profile/measure.hpp>

#include <map>
#include <tuple>

using namespace lamina;

namespace {

UpdateRule momentum() {
  UpdateRule rule;
  rule.momentum = 0.9;
  return rule;
}

/// Convolution, normalization, a residual, pooling and a linear layer. All parameters are
/// multiples of 16 elements, so that no padding is sent with their gradients.
Network residual(bool global) {
  Network net({.c = 3, .h = 8, .w = 8});
  const Node x = net.input()
                     .add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1, .bias = false}, "conv1")
                     .add<BatchNorm>({.global = global}, "norm")
                     .add<ReLU>({}, "relu");
  const Node y = x.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "conv2");
  net.join<Add>({x, y}, {}, "add")
      .add<MaxPool2D>({.window = 2}, "pool")
      .add<Linear>({.features = 16}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// On the reference back end.
PlacedNetwork place(const Network& net, const Communicator& ranks, std::int64_t batch, DType dtype,
                    const std::vector<Split>& splits = {}) {
  PlacedNetwork placed = net.place({.batch = batch,
                                    .backend = reference_backend(),
                                    .ranks = ranks,
                                    .splits = splits,
                                    .dtype = dtype,
                                    .bucket_mb = 0,
                                    .first_bucket_mb = 0});
  placed.initialize(1);
  return placed;
}

/// The profile of a step with its update.
Profile measured(PlacedNetwork& net) {
  MemorySpace& memory = net.placing().backend->memory();
  const Tensor labels({net.rows().size, 1, 1, 1}, DType::i32, memory);
  std::vector<Tensor> states;
  for (const auto& n : net.parameters()) states.emplace_back(n.parameter->form, memory);
  Stream stream;
  Context context{.stream = stream, .targets = labels};
  const auto step = [&] {
    net.forward(context);
    net.backward(context);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto& n = net.parameters()[i];
      if (!n.parameter->trained) continue;
      stream.enter(n.step);
      n.parameter->wait(stream);
      net.placing()
          .backend
          ->update(momentum(),
                   {{.w = n.parameter->value, .dw = n.parameter->grad, .states = {states[i]}}})
          ->run(stream, {.rate = 0.1});
    }
    stream.enter(-1);
  };
  return profile_steps(net, stream, net.placing().ranks, momentum(),
                       {.warmup = 0, .steps = 2, .alone = false}, step);
}

using Rows = std::map<std::tuple<std::string, Pass>, Work>;

Rows rows_of(const Profile& p) {
  Rows rows;
  for (const ProfileRow& r : p.rows)
    if (r.layer > 0) rows[{r.name, r.pass}] = r.work;
  return rows;
}

/// For n samples on a rank, and elements of `s` bytes.
Rows by_hand(double n, double s) {
  using enum Pass;
  const double x = n * 3 * 64, y = n * 16 * 64, pooled = y / 4, scores = n * 16;
  const Work conv1{2 * y * 27, s * (x + y + 16 * 27)};
  const Work conv2{2 * y * 144, s * (y + y + 16 * 144)};
  const Work fc{2 * n * 256 * 16, s * (pooled + 256 * 16 + scores)};
  const auto updated = [&](double parameters) { return Work{4 * parameters, 5 * s * parameters}; };
  return {
      {{"conv1", forward}, conv1},  // no input gradient: the images want none
      {{"conv1", weight_grad}, conv1},
      {{"conv1", update}, updated(16 * 27)},
      {{"norm", forward}, {7 * y, 3 * s * y}},
      {{"norm", weight_grad}, {4 * y, 2 * s * y}},
      {{"norm", input_grad}, {7 * y, 3 * s * y}},
      {{"norm", update}, updated(32)},
      {{"relu", forward}, {y, 2 * s * y}},
      // Its own, and the sum of what comes from conv2 and add.
      {{"relu", input_grad}, {y + y, 3 * s * y + 3 * s * y}},
      {{"conv2", forward}, conv2},
      {{"conv2", input_grad}, conv2},
      {{"conv2", weight_grad}, conv2},
      {{"conv2", update}, updated(16 * 144 + 16)},
      {{"add", forward}, {y, 3 * s * y}},
      {{"pool", forward}, {y, s * (y + pooled)}},
      {{"pool", input_grad}, {pooled, s * (y + 2 * pooled)}},
      {{"fc", forward}, fc},
      {{"fc", input_grad}, fc},
      {{"fc", weight_grad}, fc},
      {{"fc", update}, updated(257 * 16)},
      {{"loss", forward}, {5 * scores, 2 * s * scores}},
      {{"loss", input_grad}, {2 * scores, 2 * s * scores}},
  };
}

void check_rows(const Rows& rows, const Rows& expected) {
  Work sum, expected_sum;
  for (const auto& [key, work] : expected) {
    INFO(std::get<0>(key) << ' ' << name(std::get<1>(key)));
    expected_sum += work;
    const auto found = rows.find(key);
    REQUIRE(found != rows.end());
    CHECK(found->second.flops == work.flops);
    CHECK(found->second.bytes == work.bytes);
  }
  for (const auto& [key, work] : rows) {
    INFO(std::get<0>(key) << ' ' << name(std::get<1>(key)));
    CHECK(expected.count(key) == 1);
    sum += work;
  }
  CHECK(sum.flops == expected_sum.flops);
  CHECK(sum.bytes == expected_sum.bytes);
}

}  // namespace

TEST_CASE("the rows of a step add up to a count by hand") {
  const DType dtype = GENERATE(DType::f32, DType::f64);
  PlacedNetwork net = place(residual(false), {}, 5, dtype);
  const Profile p = measured(net);
  check_rows(rows_of(p), by_hand(5, dtype == DType::f64 ? 8 : 4));
  double flops = 0;
  for (const auto& [key, work] : rows_of(p)) flops += work.flops;
  // 2 passes of conv1, 3 of conv2 and fc; per element 18 of norm, 3 of relu with its sum, 1 of add
  // and 1.25 of pool; 7 per score; 4 per parameter.
  CHECK(flops == 2 * 276480 + 3 * 1474560 + 3 * 40960 + 5120 * (18 + 3 + 1 + 1.25) + 7 * 80 +
                     4 * (432 + 32 + 2320 + 4112));
}

TEST_CASE("ranks state their mean work, and send what the layers say") {
  const int ranks = GENERATE(2, 4);
  CAPTURE(ranks);
  std::vector<Profile> profiles(static_cast<std::size_t>(ranks));
  std::vector<Message> messages;
  std::vector<std::string> senders;
  std::vector<int> group_sizes;
  run_ranks(ranks, [&](World& world) {
    PlacedNetwork net = place(residual(true), world, 10, DType::f32);
    profiles[std::size_t(world.rank())] = measured(net);
    if (world.rank() > 0) return;
    for (const Step& step : net.steps()) {
      if (!step.layer) continue;
      for (const Message& m :
           step.layer->cost(step.input_shapes, step.split(), DType::f32).messages) {
        messages.push_back(m), senders.push_back(step.name);
        group_sizes.push_back(step.split().ways(m.axes));
      }
    }
  });
  CHECK(messages.size() == 7);  // conv1, norm three times, conv2, fc, loss
  for (const Profile& p : profiles) {
    check_rows(rows_of(p), by_hand(10.0 / ranks, 4));
    double sent = 0, stated = 0;
    for (const ProfileRow& r : p.rows) {
      INFO(r.name << ' ' << name(r.pass));
      double bytes = 0, wire = 0;
      for (std::size_t i = 0; i < messages.size(); ++i)
        if (senders[i] == r.name && messages[i].pass == r.pass) {
          bytes += messages[i].bytes;
          wire += messages[i].bytes * bus_factor(messages[i].op, group_sizes[i]);
        }
      CHECK(r.comm_bytes == Approx(bytes));
      CHECK(r.wire_bytes == Approx(wire));
      if (r.layer > 0) CHECK(r.split == text("batch:", ranks));
      for (const ProfileKernel& k : r.kernels)
        if (k.lane == Lane::communication) CHECK(k.what == name(Collective::all_reduce));
      sent += r.comm_bytes, stated += bytes;
    }
    CHECK(sent == Approx(stated));
    CHECK(stated == 4 * (432 + 32 + 2320 + 4112) + 2 * 32 * 8 + 40);
  }
}

TEST_CASE("what ranks compute adds up to the whole, along whichever axes it is cut") {
  Network net({.c = 3, .h = 7, .w = 7});
  net.input()
      .add<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}, "conv1")
      .add<ReLU>({}, "relu")
      .add<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}, "conv2")
      .add<GlobalAvgPool>({}, "pool")
      .add<Linear>({.features = 6}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  using Splits = std::map<std::string, Split>;
  const Split both{.channel = 2, .input = 2};
  Split uneven = both;
  uneven.shares.input = {3, 1};
  const Splits splits = GENERATE_COPY(
      Splits{{"conv1", both}, {"conv2", both}, {"fc", both}},
      Splits{{"conv1", uneven}, {"conv2", uneven}, {"fc", uneven}},
      Splits{{"conv1", {.input = 2, .height = 2}}, {"pool", {.channel = 2, .height = 2}}},
      Splits{{"relu", {.height = 2, .width = 2}}, {"pool", {.height = 2, .width = 2}}},
      Splits{{"conv2", {.batch = 2, .width = 2, .shares = {.width = {1, 2}}}}, {"fc", {}}});
  const Rows alone = [&] {
    PlacedNetwork placed = place(net, {}, 4, DType::f32);
    return rows_of(measured(placed));
  }();
  Rows rows;
  run_ranks(4, [&](World& world) {
    const std::vector<Split> all = test::splits_of(net, {.splits = splits}, 4);
    PlacedNetwork placed = place(net, world, 4, DType::f32, all);
    const Profile p = measured(placed);
    if (world.rank() == 0) rows = rows_of(p);
  });
  for (const auto& [key, work] : alone) {
    const auto& [layer, pass] = key;
    INFO(layer << ' ' << name(pass));
    if (pass == Pass::update) continue;  // of copies, on each rank that has one
    CHECK(4 * rows.at(key).flops == Approx(work.flops));
  }
}

TEST_CASE("what ranks move adds up to the whole where they have other inputs, or none") {
  Network net({.c = 8, .h = 4, .w = 4});
  const Node x = net.input().add<Conv2D>({.channels = 8, .kernel = 1}, "conv");
  net.join<Concat>({x.add<ReLU>({}, "a"), x.add<Tanh>({}, "b")}, {}, "both")
      .add<PadChannels>({.channels = 32}, "pad")
      .add<Linear>({.features = 4}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  const auto rows_on = [&](int ranks) {
    Rows rows;
    run_ranks(ranks, [&](World& world) {
      const Split channels{.channel = ranks};
      const std::vector<Split> splits =
          test::splits_of(net, {.splits = {{"both", channels}, {"pad", channels}}}, ranks);
      PlacedNetwork placed = place(net, world, 4, DType::f32, splits);
      const Profile p = measured(placed);
      if (world.rank() == 0) rows = rows_of(p);
    });
    return rows;
  };
  const Rows alone = rows_on(1);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const Rows rows = rows_on(ranks);
    const double bytes = alone.at({"both", Pass::forward}).bytes;
    CHECK(bytes == 4 * 16 * 4 * (16 + 16));
    CHECK(ranks * rows.at({"both", Pass::forward}).bytes == bytes);
    // Each counts what the rank reads that reads most: as many channels as it writes.
    CHECK(ranks * rows.at({"pad", Pass::forward}).bytes == 4 * 16 * 4 * (32 + 32));
  }
}

TEST_CASE("a reshard reads on each rank what that has, and writes what it wants") {
  Network net({.c = 3, .h = 4, .w = 4});
  net.input().add<Linear>({.features = 16}, "fc").add<SoftmaxCrossEntropy>({}, "loss");
  std::vector<Rows> rows(4);
  run_ranks(4, [&](World& world) {
    PlacedNetwork placed =
        place(net, world, 8, DType::f32, test::splits_of(net, {.splits = {{"fc", {}}}}, 4));
    rows[std::size_t(world.rank())] = rows_of(measured(placed));
  });
  for (const Rows& of : rows)  // all scores, given by four and taken by one
    for (const Pass pass : {Pass::forward, Pass::input_grad})
      CHECK(of.at({"loss.reshard", pass}).bytes == 2 * 4 * 8 * 16 / 4);
}

TEST_CASE("a first layer whose output several layers read states their sum alone") {
  Network net({.c = 2, .h = 4, .w = 4});
  const Node x = net.input().add<Conv2D>({.channels = 2, .kernel = 3, .pad = 1}, "first");
  net.join<Add>({x.add<ReLU>({}, "a"), x.add<Tanh>({}, "b"), x}, {}, "add")
      .add<Linear>({.features = 3}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  PlacedNetwork placed = place(net, {}, 2, DType::f32);
  const Profile p = measured(placed);
  const double y = 2 * 2 * 16;
  CHECK(rows_of(p).at({"first", Pass::input_grad}).flops == 2 * y);
  CHECK(rows_of(p).at({"first", Pass::input_grad}).bytes == 4 * 4 * y);
  CHECK(rows_of(p).at({"first", Pass::weight_grad}).flops == 2 * y * 18);
}
