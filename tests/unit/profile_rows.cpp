// Profiles: rows, sums and ranks, from spans made by hand and from networks that run.
#include "catch.hpp"
#include "profile_small.hpp"

#include <lamina/base/median.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/layers/batch_norm.hpp>

#include <set>

using namespace lamina;
using namespace lamina::test;

TEST_CASE("a row says what its layer is, what it must do and what it took") {
  const PlacedNetwork net = place(small());
  Profiler p;
  const int conv = step_of(net, "conv"), fc = step_of(net, "fc");
  for (int step = 0; step < 4; ++step) {
    p.begin_step();
    p.record({conv, Pass::forward, Lane::compute, "conv", 0, 1e-3 * (step + 1), 0});
    p.record({fc, Pass::update, Lane::compute, "update", 2, 2.001, 0});
    p.record({fc, Pass::weight_grad, Lane::wait, "all_reduce", 3, 3.002, 0});
    p.record({fc, Pass::weight_grad, Lane::communication, "all_reduce", 2, 3.002, 4096});
    p.record({-1, Pass::forward, Lane::compute, "load", 4, 4.003, 0});
    p.end_step();
  }
  UpdateRule rule;
  rule.momentum = 0.9;
  const Profile profile = make_profile(net, p, rule, {});
  REQUIRE(profile.rows.size() == 4);

  const ProfileRow& c = row(profile, "conv", Pass::forward);
  CHECK(c.type == "Conv2D");
  CHECK(c.describe == "4 3x3 p1");
  CHECK(c.split == "none");
  CHECK(c.layer == conv);
  CHECK(c.algorithm == net.steps()[std::size_t(conv)].placement.algorithm);
  CHECK(c.time.mean == Approx(2.5e-3));
  CHECK(c.step_min == Approx(1e-3));
  CHECK(c.step_median == Approx(2.5e-3));
  CHECK(c.step_std == Approx(1e-3 * std::sqrt(5.0 / 3)));
  const double flops = 2.0 * 4 * 8 * 8 * 4 * 3 * 9;
  CHECK(c.work.flops == flops);
  CHECK(c.work.bytes == 4.0 * (4 * 3 * 64 + 4 * 4 * 64 + 4 * 3 * 9));
  CHECK(c.flops_per_second() == Approx(flops / 2.5e-3));

  const ProfileRow& update = row(profile, "fc", Pass::update);
  CHECK(update.work.flops == 4.0 * (256 * 5 + 5));
  CHECK(update.work.bytes == 5 * 4.0 * (256 * 5 + 5));

  const ProfileRow& sum = row(profile, "fc", Pass::weight_grad);
  CHECK(sum.time.mean == 0);
  CHECK(sum.comm.mean == Approx(1.002));
  CHECK(sum.exposed.mean == Approx(0.002));
  CHECK(sum.comm_bytes == 4096);
  REQUIRE(sum.kernels.size() == 2);
  CHECK(sum.kernels[0].calls == 1);

  CHECK(profile.rows.back().name == outside_layers);
  CHECK(profile.compute.mean == Approx(2.5e-3 + 1e-3 + 3e-3));
  CHECK(profile.sum_layers.mean == Approx(2.5e-3 + 1e-3 + 3e-3 + 2e-3));
  double total = 0;
  for (const ProfileRow& r : profile.rows) total += r.seconds();
  CHECK(total == Approx(profile.sum_layers.mean));
  CHECK(profile.optimizer == "sgd momentum 0.9");
  CHECK(profile.steps == 4);
}

TEST_CASE("what lies in no span is unaccounted") {
  Profile p;
  p.sum_layers.mean = 0.95, p.end_to_end.mean = 1;
  CHECK(p.unaccounted() == Approx(0.05));
  CHECK(Profile().unaccounted() == 0);
}

TEST_CASE("a profile of nothing is refused") {
  PlacedNetwork planned(small(), {.batch = 4, .backend = reference_backend()});
  CHECK_THROWS_WITH(profile(planned, {}, {}), ContainsSubstring("no buffers"));
  CHECK_THROWS_WITH(make_profile(planned, Profiler(), {}, {}), ContainsSubstring("not placed"));
  CHECK_THROWS_WITH(profile(small(), {}, {}), ContainsSubstring("batch"));
  PlacedNetwork net = place(small());
  CHECK_THROWS_WITH(make_profile(net, Profiler(), {}, {}), ContainsSubstring("no step"));
  CHECK_THROWS_WITH(profile(net, {}, {.steps = 0}), ContainsSubstring("steps"));
  Network open({.c = 1, .h = 1, .w = 2});
  open.add<Linear>({.features = 2}, "head");
  CHECK_THROWS_WITH(profile(open, {}, {.batch = 1, .backend = "reference"}),
                    ContainsSubstring("head (Linear)") && ContainsSubstring("loss"));
}

TEST_CASE("ranks are merged: mean, extremes and the slowest one") {
  std::vector<Profile> profiles(3);
  run_ranks(3, [&](World& world) {
    const Communicator& ranks = world.comm();
    const PlacedNetwork net = place(small(), ranks);
    Profiler p;
    const int conv = step_of(net, "conv"), relu = step_of(net, "relu");
    const double time[] = {1e-3, 4e-3, 1e-3};
    const double mine = time[ranks.rank()];
    p.begin_step();
    p.record({conv, Pass::forward, Lane::compute, "conv", 0, mine, 0});
    p.record({conv, Pass::weight_grad, Lane::wait, "all_reduce", 1, 1 + (5e-3 - mine), 0});
    if (ranks.rank() == 2) p.record({relu, Pass::forward, Lane::compute, "relu", 2, 2.0015, 0});
    p.end_step();
    profiles[std::size_t(ranks.rank())] = make_profile(net, p, {}, ranks);
  });
  for (const Profile& p : profiles) {
    CHECK(p.ranks == 3);
    const ProfileRow& c = row(p, "conv", Pass::forward);
    CHECK(c.time.min == Approx(1e-3));
    CHECK(c.time.mean == Approx(2e-3));
    CHECK(c.time.max == Approx(4e-3));
    CHECK(c.time.slowest == 1);
    CHECK(c.time.imbalance() == Approx(2));
    CHECK(c.split == "batch:3");
    CHECK(row(p, "conv", Pass::weight_grad).exposed.mean +
              row(p, "fc", Pass::weight_grad).exposed.mean ==
          Approx(3e-3));                                  // they share a bucket
    const ProfileRow& r = row(p, "relu", Pass::forward);  // of one rank, on all of them
    CHECK(r.time.min == 0);
    CHECK(r.time.mean == Approx(0.5e-3));
    CHECK(r.time.slowest == 2);
    CHECK(p.compute.slowest == 1);  // who computes longest, though all end together
    CHECK(p.compute.imbalance() == Approx(4 / 2.5));
    CHECK(p.sum_layers.mean == Approx(5.5e-3));
    CHECK(p.sum_layers.min == Approx(5e-3));
  }
}

TEST_CASE("steps have a spread: rows with what they wait, and what lies in no row") {
  const PlacedNetwork net = place(small());
  Profiler p;
  const int conv = step_of(net, "conv"), fc = step_of(net, "fc");
  for (const double step : {1e-3, 2e-3, 3e-3}) {
    p.begin_step();
    p.record({fc, Pass::weight_grad, Lane::compute, "dw", 0, 5e-3 + step, 0});
    p.record({conv, Pass::weight_grad, Lane::compute, "dw", 1, 1.01, 0});
    p.record({conv, Pass::weight_grad, Lane::wait, "all_reduce", 2, 2 + step, 0});
    p.end_step();
  }
  const Profile profile = make_profile(net, p, {}, {});
  // Both layers share the bucket for which conv waits.
  const double of_conv = 112.0 / (112 + 1285);
  CHECK(row(profile, "conv", Pass::weight_grad).step_total_std == Approx(1e-3 * of_conv));
  CHECK(row(profile, "conv", Pass::weight_grad).step_std == Approx(0).margin(1e-12));
  CHECK(row(profile, "fc", Pass::weight_grad).step_total_std == Approx(1e-3 * (2 - of_conv)));
  CHECK(profile.step_spread.kernels == Approx(1e-3));
  CHECK(profile.step_spread.waiting == Approx(1e-3));
  CHECK(profile.step_spread.clean < 0);  // there was none
  std::vector<double> rest = p.seconds();
  for (std::size_t s = 0; s < 3; ++s) rest[s] -= 15e-3 + 2e-3 * double(s + 1);
  CHECK(profile.step_spread.unaccounted == Approx(deviation(rest)));
  CHECK(profile.step_spread.end_to_end == Approx(deviation(p.seconds())));
  CHECK(deviation({1, 3}) == Approx(std::sqrt(2)));
  CHECK(deviation({1}) < 0);
}

TEST_CASE("rows are matched by name where ranks have other steps") {
  std::vector<Profile> profiles(2);
  run_ranks(2, [&](World& world) {
    Network net({.c = 1, .h = 2, .w = 2});
    if (world.rank() == 1) net.add<ReLU>({}, "extra");
    net.add<ReLU>({}, "last");
    const PlacedNetwork placed = place(net);  // alone: ranks that share a network have one
    Profiler p;
    p.begin_step();
    p.record({step_of(placed, "last"), Pass::forward, Lane::compute, "relu", 0, 2e-3, 0});
    p.end_step();
    profiles[std::size_t(world.rank())] = make_profile(placed, p, {}, world.comm());
  });
  for (const Profile& p : profiles) {
    REQUIRE(p.rows.size() == 1);
    CHECK(row(p, "last", Pass::forward).time.min == Approx(2e-3));
    CHECK(row(p, "last", Pass::forward).time.mean == Approx(2e-3));
  }
}

TEST_CASE("every layer that works has rows, with the work that it states") {
  const PlacedNetwork net = place(small());
  const Profile p = profile(small(), {}, {.steps = 3, .batch = 4, .backend = "reference"});
  CHECK(p.batch == 4);
  CHECK(p.dtype == "f32");
  std::set<std::string> names;
  for (const ProfileRow& r : p.rows) names.insert(r.name);
  CHECK(names == std::set<std::string>{"conv", "relu", "fc", "loss"});  // Flatten does nothing
  CHECK(find(p, "conv", Pass::input_grad) == nullptr);                  // nobody wants it
  for (const Step& step : net.steps()) {
    if (!step.layer || step.placement.alias) continue;
    const Cost cost = step.layer->cost(step.input_shapes, {}, DType::f32);
    CHECK(row(p, step.name, Pass::forward).work.flops == cost.forward.flops);
    if (const auto* r = find(p, step.name, Pass::input_grad))
      CHECK(r->work.bytes == cost.input_grad.bytes);
    for (const ProfileRow& r : p.rows) {
      CHECK(r.time.mean > 0);
      CHECK(r.comm.mean == 0);
      CHECK(r.step_min <= r.step_median);
    }
  }
  CHECK(row(p, "fc", Pass::weight_grad).work.flops == 2.0 * 4 * 256 * 5);
  CHECK(p.unaccounted() >= 0);
  CHECK(p.unaccounted() < 1);
}

TEST_CASE("a step of one's own has its update in the profile, and its ranks their reductions") {
  struct Rank {
    Profile profile;
    int calls = 0;
    double gradients = 0;
    bool detached = false;
  };
  std::vector<Rank> all(2);
  run_ranks(2, [&](World& world) {
    Rank& mine = all[std::size_t(world.rank())];
    PlacedNetwork net = place(small(), world.comm());
    const Tensor labels({net.rows().size, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    Stream stream;
    Context context{.stream = stream, .targets = labels};
    const UpdateRule rule;
    const auto step = [&] {
      ++mine.calls;
      net.forward(context);
      net.backward(context);
      for (const auto& n : net.parameters()) {
        Parameter& p = *n.parameter;
        stream.enter(n.step);
        p.wait(stream);
        net.placing()
            .backend->update(rule, {{.w = p.value, .dw = p.grad}})
            ->run(stream, {.rate = 0.1});
      }
      stream.enter(-1);
    };
    mine.profile = profile_steps(net, stream, world.comm(), rule, {.warmup = 1, .steps = 2}, step);
    mine.detached = stream.recorder() == nullptr;
    for (const Bucket& b : net.buckets()) mine.gradients += double(b.gradients.bytes());
  });
  for (const Rank& rank : all) {
    const Profile& p = rank.profile;
    CHECK(rank.calls == 1 + 2 * 2 + 1 + 2);  // warm-up, pairs, silent warm-up, silent
    CHECK(rank.detached);
    CHECK(p.steps == 2);
    CHECK(row(p, "conv", Pass::update).time.min > 0);
    CHECK(find(p, "relu", Pass::update) == nullptr);
    double bytes = 0;
    for (const ProfileRow& r : p.rows) {
      if (r.pass == Pass::weight_grad) bytes += r.comm_bytes;
      CHECK(r.exposed.mean <= p.end_to_end.mean);
    }
    CHECK(bytes == Approx(rank.gradients));
    CHECK(p.unaccounted() >= 0);
    CHECK(p.step_spread.clean >= 0);
  }
}

TEST_CASE("what is computed twice has a row for either time") {
  std::vector<Profile> all(2);
  run_ranks(2, [&](World& world) {
    Network layers({.c = 6, .h = 2, .w = 2});
    layers.add<BatchNorm>({.global = true}, "norm");
    layers.add<Linear>({.features = 8}, "wide");
    layers.add<Linear>({.features = 4}, "last");
    layers.add<SoftmaxCrossEntropy>({}, "loss");
    PlacedNetwork net = layers.place(
        {.batch = 4,
         .backend = reference_backend(),
         .ranks = world.comm(),
         .splits = {{.batch = 2}, {.batch = 2}, {.input = 2}, {.channel = 2}, {.channel = 2}},
         .recompute = {false, true, true, false, false}});
    net.initialize(1);
    const Tensor labels({4, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    Stream stream;
    Context context{.stream = stream, .targets = labels};
    const auto step = [&] { net.forward(context), net.backward(context); };
    all[std::size_t(world.rank())] =
        profile_steps(net, stream, world.comm(), {}, {.warmup = 1, .steps = 2}, step);
  });
  for (const Profile& p : all) {
    const ProfileRow &once = row(p, "wide", Pass::forward),
                     &twice = row(p, "wide", Pass::recompute);
    CHECK(twice.work.flops == once.work.flops);
    CHECK(once.comm_bytes == 4 * 8 * 4);  // it sums its parts of y, both times
    CHECK(twice.comm_bytes == once.comm_bytes);
    // Between the norm and the layer that reads it lies a reshard, whose output is kept.
    CHECK(find(p, "norm", Pass::recompute) == nullptr);
    CHECK(find(p, "last", Pass::recompute) == nullptr);
  }
}

TEST_CASE("a norm that is computed again only normalises, and sends nothing") {
  const BatchNorm norm({.global = true});
  const std::array xs{Shape{4, 6, 2, 2}};
  const Cost cost = norm.cost(xs, {}, DType::f32);
  CHECK(cost.recompute.flops == 2 * 96);
  CHECK(cost.recompute.bytes == 2 * 4 * 96);
  const Conv2D conv({.channels = 4});
  CHECK(conv.cost(xs, {}, DType::f32).recompute.flops == 2 * 4 * 96);
  const Cost split = norm.cost(xs, {.batch = 2}, DType::f32);
  CHECK(std::count_if(split.messages.begin(), split.messages.end(),
                      [](const Message& m) { return m.pass == Pass::forward && m.once; }) == 1);
}

TEST_CASE("the recorder comes off when a step throws") {
  const PlacedNetwork net = place(small());
  Stream stream;
  const auto step = [&] {
    if (stream.recorder()) throw Error("no more data");
  };
  CHECK_THROWS_WITH(profile_steps(net, stream, {}, {}, {}, step), "no more data");
  CHECK(stream.recorder() == nullptr);
}
