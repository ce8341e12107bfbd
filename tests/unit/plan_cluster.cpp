// Clusters as data, and what a collective takes on them: by hand, by properties, by measured
// points.
#include "catch.hpp"
#include "support/error_of.hpp"

#include <lamina/cost/group.hpp>
#include <lamina/plan/cluster.hpp>

#include <cmath>
#include <limits>
#include <numeric>

using namespace lamina;
using lamina::test::error_of;

namespace {

/// α = 1 and 1/β = 8 inside, α = 10 and 1/β = 2 across, which `sharers` devices share.
Cluster made(int sharers = 4, double reduction = 0) {
  const DeviceModel device = {.name = "d",
                              .memory = 1e9,
                              .bandwidth = 1e9,
                              .flops = {{DType::f32, 1e12, 1e12}},
                              .launch = 1e-6,
                              .reduction = reduction};
  return {.name = "made",
          .nodes = {{4, device}},
          .devices_per_node = 4,
          .inside = {1, 8},
          .across = {10, 2},
          .sharers = sharers};
}

std::vector<int> ranks(int count, int stride = 1, int first = 0) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[std::size_t(i)] = first + i * stride;
  return all;
}

constexpr Collective moving[] = {Collective::all_reduce, Collective::reduce_scatter,
                                 Collective::all_gather, Collective::broadcast,
                                 Collective::all_to_all, Collective::halo};

}  // namespace

TEST_CASE("ranks number devices node by node") {
  Cluster c = made();
  c.nodes.push_back({2, c.nodes[0].device});
  c.nodes[1].device.name = "e";
  CHECK(c.node_count() == 6);
  CHECK(c.devices() == 24);
  CHECK(c.device_of(0).name == "d");
  CHECK(c.device_of(15).name == "d");
  CHECK(c.device_of(16).name == "e");
  CHECK(c.device_of(23).name == "e");
  CHECK(error_of([&] { c.device_of(24); }) ==
        "expected a rank from 0 to 23 of cluster 'made', got 24");
  CHECK_THAT(error_of([&] { c.device_of(-1); }), ContainsSubstring("got -1"));
}

TEST_CASE("a type that is not listed is computed as f32, or is an error") {
  DeviceModel d{.name = "d", .flops = {{DType::f32, 1, 2}, {DType::f16, 3, 4}}};
  CHECK(d.flops_of(DType::f16).gemm == 3);
  CHECK(d.flops_of(DType::bf16).conv == 2);
  CHECK(d.flops_of(DType::f32).conv == 2);
  CHECK(error_of([&] { d.flops_of(DType::f64); }) == "device 'd' has no FLOP/s of f64");
}

TEST_CASE("a cluster is cut and grown by whole nodes") {
  Cluster c = made();
  c.nodes.push_back({2, c.nodes[0].device});
  c.nodes[1].device.name = "e";
  const auto counts = [](const Cluster& of) {
    std::string s;
    for (const Nodes& group : of.nodes) append(s, text(group.count, group.device.name, ' '));
    return s;
  };
  CHECK(counts(c.of(24)) == "4d 2e ");
  CHECK(counts(c.of(8)) == "2d ");
  CHECK(counts(c.of(20)) == "4d 1e ");
  CHECK(counts(c.of(4096)) == "4d 1020e ");
  CHECK(c.of(4096).devices() == 4096);
  CHECK(c.of(3).devices() == 3);
  CHECK(c.of(3).devices_per_node == 3);
  CHECK(c.of(3).sharers == 3);
  CHECK(made(1).of(3).sharers == 1);
  CHECK(error_of([&] { c.of(6); }) ==
        "cluster 'made': expected a multiple of 4 devices, or fewer than these, got 6");
  for (const int wrong : {0, -4, 5}) CHECK_FALSE(error_of([&] { c.of(wrong); }).empty());
  CHECK_THAT(error_of([&] { c.of(1 << 22); }), ContainsSubstring("up to 1048576 devices"));
  CHECK_THAT(error_of([] { Cluster{}.of(1); }), ContainsSubstring("expected a multiple of 1"));
  for (const int devices : {1, 2, 4, 16, 4096}) check_cluster(made().of(devices));
}

TEST_CASE("collectives inside a node take what the formulas say") {
  const Cluster c = made(), adds = made(4, 16);  // γ = 1/16
  const auto time = [&](Collective op, double bytes, int p, const Cluster& of) {
    return collective_time(of, op, bytes, ranks(p));
  };
  using enum Collective;
  CHECK(time(all_reduce, 800, 4, c) == 2 * 2 * 1 + 2 * 0.75 * 100);  // Rabenseifner
  CHECK(time(all_reduce, 8, 4, c) == 2 * (1 + 1));                   // recursive doubling
  CHECK(time(all_reduce, 1200, 3, c) == Approx(2 * 2 * 1 + 4.0 / 3 * 150));
  CHECK(time(all_reduce, 800, 4, adds) == 4 + 150 + 0.75 * 50);
  CHECK(time(all_reduce, 8, 4, adds) == 2 * (1 + 1 + 0.5));
  CHECK(time(reduce_scatter, 800, 4, c) == 2 + 0.75 * 100);  // recursive halving
  CHECK(time(reduce_scatter, 800, 4, adds) == 2 + 0.75 * 150);
  CHECK(time(all_gather, 800, 4, adds) == 2 + 0.75 * 100);
  CHECK(time(all_to_all, 800, 4, adds) == 3 + 0.75 * 100);
  CHECK(time(broadcast, 8, 4, adds) == 2 * (1 + 1));
  CHECK(time(broadcast, 800, 4, adds) == (2 + 2) * 1 + 2 * 0.75 * 100);
  CHECK(time(halo, 800, 2, adds) == 1 + 100);
  CHECK(time(halo, 800, 4, adds) == 2 + 100);
  CHECK(time(barrier, 0, 4, adds) == 2);
  CHECK(time(barrier, 0, 2, adds) == 1);
  for (const Collective op : moving) CHECK(time(op, 1e9, 1, c) == 0);
  // Another node, in another order.
  CHECK(collective_time(c, all_gather, 800, {6, 4, 7, 5}) == 77);
}

TEST_CASE("groups with a rank per node share its link with the groups beside them") {
  using enum Collective;
  // {0, 4, 8, 12}, {1, 5, 9, 13} and two more: each has a quarter, 1/β = 0.5.
  CHECK(collective_time(made(4), all_reduce, 800, ranks(4, 4)) == 2 * 2 * 10 + 2 * 0.75 * 1600);
  CHECK(collective_time(made(4), all_gather, 800, ranks(4, 4)) == 2 * 10 + 0.75 * 1600);
  CHECK(collective_time(made(2), all_gather, 800, ranks(4, 4)) == 2 * 10 + 0.75 * 800);
  CHECK(collective_time(made(1), all_gather, 800, ranks(4, 4)) == 2 * 10 + 0.75 * 400);
  // Every other node: still four groups on each.
  CHECK(collective_time(made(4), all_gather, 800, ranks(2, 8)) == 10 + 0.5 * 1600);
  // Neighbours on two nodes: nobody is beside them.
  CHECK(collective_time(made(4), all_gather, 800, {3, 4}) == 10 + 0.5 * 400);
  CHECK(collective_time(made(4), halo, 800, ranks(4, 4)) == 20 + 1600);
  CHECK(collective_time(made(4), broadcast, 800, ranks(4, 4)) == 4 * 10 + 1.5 * 1600);
  CHECK(collective_time(made(4), barrier, 0, ranks(4, 4)) == 20);
}

TEST_CASE("mixed groups go in two levels, or around as if there were none") {
  using enum Collective;
  const Cluster c = made();
  const auto time = [&](Collective op, const std::vector<int>& of) {
    return collective_time(c, op, 800, of);
  };
  // Four ranks on each of two nodes, which all send at once: β across is 2.
  CHECK(time(all_reduce, ranks(8)) == (2 + 75) + (10 + 200 * 2) + (2 + 75));
  CHECK(time(reduce_scatter, ranks(8)) == (2 + 75) + (10 + 100 * 2));
  CHECK(time(all_gather, ranks(8)) == (10 + 100 * 2) + (2 + 75));
  CHECK(time(broadcast, ranks(8)) == (10 + 800 * 0.5) + (4 + 150));
  CHECK(time(all_to_all, ranks(8)) == 3 * (1 + 12.5) + 4 * (10 + 100 * 2));
  CHECK(time(halo, ranks(8)) == 2 * 10 + 800 * 0.5);
  CHECK(time(barrier, ranks(8)) == 10 + 2);
  // On four nodes, all_reduce across is Rabenseifner's.
  CHECK(time(all_reduce, ranks(16)) == (2 + 75) + (2 * 2 * 10 + 1.5 * 200 * 2) + (2 + 75));
  // Of few bytes it is recursive doubling, inside and then across.
  CHECK(collective_time(c, all_reduce, 1, ranks(16)) == 2 * (2 + 0.75 * 0.125) + 2 * (10 + 0.5));
  CHECK(collective_time(c, all_reduce, 0.25, ranks(16)) == 2 * (1 + 0.03125) + 2 * (10 + 0.5));
  CHECK(collective_time(made(4, 16), all_reduce, 0.25, ranks(16)) ==
        2 * (1 + 0.03125 + 0.015625) + 2 * (10 + 0.5 + 0.015625));
  // Two ranks on a node, and another such group beside them.
  CHECK(time(all_reduce, ranks(4, 2)) == (1 + 50) + (10 + 400 * 2) + (1 + 50));
  CHECK(time(broadcast, ranks(4, 2)) == (10 + 800 * 1) + (1 + 100));
  // Ranks that differ in two places of a split, {0, 1, 4, 5} and {2, 3, 6, 7}: likewise.
  CHECK(time(all_reduce, {0, 1, 4, 5}) == time(all_reduce, ranks(4, 2)));
  CHECK(time(halo, {0, 1, 4, 5}) == time(halo, ranks(4, 2)));
  // One rank alone on its node has all to send.
  CHECK(time(all_reduce, ranks(5)) == (2 + 75) + (10 + 800 * 0.5) + (2 + 75));
  // With adding up, too: γ = 1/16.
  CHECK(collective_time(made(4, 16), all_reduce, 800, ranks(8)) ==
        (2 + 75 + 37.5) + (10 + 200 * (2 + 0.0625)) + (2 + 75));
}

TEST_CASE("where the links inside are no better, a mixed group goes as if there were no levels") {
  using enum Collective;
  Cluster c = made(1);
  c.inside = c.across;
  CHECK(collective_time(c, all_reduce, 800, ranks(16)) == 2 * 4 * 10 + 2 * 15.0 / 16 * 400);
  c.inside.bandwidth = 0.25;  // which holds up what has no levels, too
  CHECK(collective_time(c, all_reduce, 800, ranks(8)) == 2 * (2 * 10 + 600 * 4) + 10 + 100);
  // A ring crosses each node's link once, all else with every rank: it is the best of these where
  // all share that link, and bytes are many.
  Cluster ring = made(4);
  ring.inside = {10, 0.5};
  ring.across = {1e-3, 1};
  CHECK(collective_time(ring, all_reduce, 1e6, ranks(8)) ==
        Approx(2 * 7 * 10 + 2 * 7.0 / 8 * 1e6 * 2));
}

TEST_CASE("rings have all links of their ranks, a halo has one") {
  using enum Collective;
  Cluster c = made(2);  // two links on a node, for two devices each
  c.inside.bandwidth = 2;
  CHECK(collective_time(c, halo, 800, ranks(8)) == 2 * 10 + 800 * 0.5);
  CHECK(collective_time(c, halo, 800, ranks(4, 2)) == 2 * 10 + 800 * 1);
  CHECK(collective_time(c, all_gather, 1e6, ranks(4, 2)) == 3 * 10 + 0.75 * 1e6 * 0.5);
  c.inside.bandwidth = 4;
  CHECK(collective_time(c, all_gather, 1e6, ranks(8)) == 7 * 10 + 7.0 / 8 * 1e6 * 0.25);
  // The scatter of a broadcast has one, its all_gather both.
  CHECK(collective_time(c, broadcast, 1e6, ranks(8)) ==
        (3 + 7) * 10 + 7.0 / 8 * 1e6 * (0.5 + 0.25));
}

TEST_CASE("the slowest device adds up for all") {
  Cluster c = made(4, 16);
  c.nodes.push_back({1, c.nodes[0].device});
  c.nodes[1].device.reduction = 8;
  const auto time = [&](const std::vector<int>& of) {
    return collective_time(c, Collective::reduce_scatter, 800, of);
  };
  CHECK(time(ranks(4)) == 2 + 0.75 * (100 + 50));
  CHECK(time(ranks(4, 1, 16)) == 2 + 0.75 * (100 + 100));
  CHECK(time({15, 16}) == 10 + 0.5 * (400 + 100));
  c.nodes.push_back(c.nodes[0]);
  CHECK(time({19, 20}) == 10 + 0.5 * (400 + 100));
}

TEST_CASE("with a card per device, rings use them all, and two levels save their latency") {
  const auto time = [](int devices, double bytes) {
    return collective_time(ready_cluster("h100-ndr").of(devices), Collective::all_reduce, bytes,
                           ranks(devices));
  };
  const double levels = 2 * (3 * 5e-6 + 7 * 1e8 / 8 / 370e9) +      // inside
                        2 * 2 * 12e-6 + 2 * 0.75 * 1e8 / 8 / 48e9;  // across
  const double rings = 2 * 31 * (12e-6 + 1e8 / 32 / 370e9);
  CHECK(levels < rings);
  CHECK(time(32, 1e8) == Approx(levels));
  CHECK(time(32, 1e9) == Approx(2 * 31 * (12e-6 + 1e9 / 32 / 370e9)));
  // 2 hosts reached a bus bandwidth of 368.76 GB/s by rings: NVIDIA/nccl-tests 309.
  CHECK(2 * 15.0 / 16 * 16e9 / time(16, 16e9) == Approx(368.76e9).epsilon(0.01));
}

TEST_CASE("time rises with bytes and with ranks") {
  for (const auto name : cluster_names()) {
    const Cluster c = ready_cluster(name).of(64);
    CAPTURE(name);
    for (const Collective op : moving) {
      CAPTURE(lamina::name(op));
      for (const int stride : {1, 2, 4, 8})
        for (int p = 2; p * stride <= 64; p *= 2) {
          double before = 0;
          for (double bytes = 1; bytes < 1e10; bytes *= 1.7) {
            const double t = collective_time(c, op, bytes, ranks(p, stride));
            if (t < before || !(t > 0)) FAIL(p << " ranks, " << bytes << " bytes: " << t);
            before = t;
          }
        }
      for (const int stride : {1, 2, 8})
        for (const double bytes : {1e2, 1e5, 1e8}) {
          double before = 0;
          for (int p = 2; p * stride <= 64; p *= 2) {
            const double t = collective_time(c, op, bytes, ranks(p, stride));
            if (t < before) FAIL(p << " ranks, " << bytes << " bytes: " << t << " < " << before);
            before = t;
          }
        }
    }
  }
}

TEST_CASE("what was measured counts, and between points time rises") {
  using enum Collective;
  Cluster c = made();
  c.measured = {{all_reduce, 4, 4, 100, 5},
                {all_gather, 4, 4, 100, 7},
                {all_reduce, 4, 4, 400, 20},
                {all_reduce, 4, 4, 1600, 15},  // cannot be: as long as the one before
                {all_reduce, 4, 4, 3200, 80}};
  check_cluster(c);
  const auto time = [&](double bytes) {
    return collective_time(c, all_reduce, bytes, ranks(4, 4, 1));
  };
  CHECK(time(100) == 5);
  CHECK(time(400) == 20);
  CHECK(time(3200) == 80);
  CHECK(time(0) == 5);
  CHECK(time(1) == 5);
  CHECK(time(200) == Approx(10));  // linear in the logarithms: 5 (b/100)^1
  CHECK(time(1600) == 20);
  CHECK(time(800) == 20);
  CHECK(time(3200 / std::sqrt(2.0)) == Approx(40));  // 20 (b/1600)^2
  CHECK(time(32000) == Approx(800));                 // proportional
  double before = 0;
  for (double bytes = 1; bytes < 1e5; bytes *= 1.03) {
    if (time(bytes) < before) FAIL(bytes << " bytes");
    before = time(bytes);
  }
  CHECK(collective_time(c, all_gather, 200, ranks(4, 4)) == Approx(14));
  // Another operation, number of ranks or stride: the formulas.
  const Cluster formulas = made();
  CHECK(collective_time(c, reduce_scatter, 200, ranks(4, 4)) ==
        collective_time(formulas, reduce_scatter, 200, ranks(4, 4)));
  for (const auto& other : {ranks(4), ranks(2, 4), ranks(3, 4), ranks(4, 2)})
    CHECK(collective_time(c, all_reduce, 200, other) ==
          collective_time(formulas, all_reduce, 200, other));
  // And disturbed points say nothing.
  for (CommCeiling& point : c.measured) point.disturbed = true;
  CHECK(time(400) == collective_time(formulas, all_reduce, 400, ranks(4, 4)));
  c.measured[4].disturbed = false;
  CHECK(time(400) == 80);
}

TEST_CASE("a redistribution takes its messages in rounds, each with the i-th rank after it") {
  const auto time = [](int sharers, const std::vector<Sent>& all) {
    return redistribution_time(made(sharers), 16, all);
  };
  CHECK(time(4, {}) == 0);
  CHECK(time(4, {{1, 0, 80}, {2, 0, 0}, {3, 0, 0}}) == 3 + 10);
  CHECK(time(4, {{4, 0, 60}, {8, 0, 20}}) == 20 + 160);
  CHECK(time(1, {{4, 0, 60}, {8, 0, 20}}) == 20 + 40);
  CHECK(time(2, {{1, 0, 80}, {4, 0, 80}}) == 1 + 10 + 10 + 80);
  // Who sends to many is as busy as who gets from many; both ways at once is no more than one.
  CHECK(time(4, {{0, 1, 80}, {0, 2, 0}, {0, 3, 0}}) == 3 + 10);
  CHECK(time(4, {{0, 1, 80}, {1, 0, 80}}) == 2 + 20);
  CHECK(redistribution_time(made(), 2, std::vector<Sent>{{0, 1, 80}, {1, 0, 80}}) == 1 + 10);
  // Round 1: 0 to 1, while 2 to 3; round 2: 1 to 3, when both are done.
  CHECK(time(4, {{1, 3, 16}, {2, 3, 40}, {0, 1, 8}}) == (1 + 5) + (1 + 2));
  // Rank 2 need not wait for what 0 and 1 have among themselves.
  CHECK(time(4, {{0, 1, 80}, {2, 4, 8}}) == 10 + 16);
  CHECK_THAT(error_of([&] { time(1, {{0, 1, -1}}); }), ContainsSubstring("got -1 from 0 to 1"));
  CHECK_THAT(error_of([&] { time(1, {{0, 16, 1}}); }), ContainsSubstring("from 0 to 16"));
  CHECK_THAT(error_of([&] { time(1, {{3, 3, 1}}); }), ContainsSubstring("from 3 to 3"));
  CHECK_THAT(error_of([&] { redistribution_time(made(), 17, {}); }), ContainsSubstring("got 17"));
  // Among many ranks what each gets counts, and what each gives.
  Cluster many = made();
  many.nodes[0].count = 5;
  CHECK(redistribution_time(many, 20, std::vector<Sent>{{0, 1, 80}, {0, 2, 0}, {1, 2, 8}}) ==
        1 + 10 + 1);
  CHECK(redistribution_time(many, 20, std::vector<Sent>{{1, 0, 80}, {2, 0, 0}, {2, 1, 8}}) ==
        1 + 10 + 1);
}

TEST_CASE("a redistribution takes what its messages were measured to take") {
  Cluster c = made();
  c.devices_per_node = 1;
  c.measured = {{Collective::all_to_all, 2, 1, 100, 1e6},
                {Collective::all_to_all, 4, 1, 400, 90},
                {Collective::halo, 2, 1, 100, 7},
                {Collective::halo, 2, 2, 100, 1e6}};
  const auto time = [&](const std::vector<Sent>& all) { return redistribution_time(c, 4, all); };
  CHECK(time({{0, 1, 100}, {1, 2, 100}}) == 7);
  CHECK(time({{0, 1, 200}}) == 14);
  CHECK(time({{0, 1, 100}, {0, 2, 100}}) == 2 * 30);
  CHECK(time({{0, 1, 100}, {0, 2, 200}, {0, 3, 100}}) == 30 + 60 + 30);
  // Links of two kinds: the formulas.
  c.devices_per_node = 2;
  CHECK(time({{0, 1, 80}}) == 1 + 10);
}

TEST_CASE("a collective of what is not there is an error") {
  const auto why = [](double bytes, const std::vector<int>& of) {
    return error_of([&] { collective_time(made(), Collective::all_reduce, bytes, of); });
  };
  CHECK(why(1, {}) == "a collective: expected one rank at least");
  CHECK(why(1, {0, 16}) ==
        "a collective: expected ranks from 0 to 15 of cluster 'made', got 0 to 16");
  CHECK_THAT(why(1, {-1, 2}), ContainsSubstring("got -1 to 2"));
  CHECK(why(1, {3, 1, 3}) == "a collective: rank 3 comes twice");
  CHECK(why(-1, {0, 1}) == "all_reduce: expected 0 bytes or more, got -1");
  CHECK_FALSE(why(std::nan(""), {0, 1}).empty());
}

TEST_CASE("a cluster that cannot be is an error that names the member") {
  const auto why = [](auto&& spoil) {
    Cluster c = made();
    c.measured = {{Collective::all_reduce, 2, 1, 100, 1},
                  {Collective::halo, 2, 1, 50, 1},
                  {Collective::all_reduce, 2, 1, 200, 1}};
    check_cluster(c);
    spoil(c);
    return error_of([&] { check_cluster(c); });
  };
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  using C = Cluster&;
  CHECK(why([](C c) { c.nodes.clear(); }) == "nodes: expected one at least");
  CHECK(why([](C c) { c.nodes[0].count = 0; }) == "nodes[0].count: expected 1 or more, got 0");
  CHECK(why([](C c) { c.nodes[0].count = 1 << 20; }) ==
        "nodes[0].count: expected up to 1048576 devices in all, got 4194304");
  CHECK(why([](C c) { c.devices_per_node = 0; }) == "devices_per_node: expected 1 or more, got 0");
  CHECK(why([](C c) { c.nodes[0].device.memory = 0; }) ==
        "nodes[0].device.memory: expected more than 0 bytes, got 0");
  CHECK(why([&](C c) { c.nodes[0].device.memory = inf; }) ==
        "nodes[0].device.memory: expected more than 0 bytes, got inf");
  CHECK(why([](C c) { c.nodes[0].device.bandwidth = -1; }) ==
        "nodes[0].device.bandwidth: expected more than 0 bytes/s, got -1");
  CHECK(why([&](C c) { c.nodes[0].device.launch = nan; }) ==
        "nodes[0].device.launch: expected 0 seconds or more, got nan");
  CHECK(why([](C c) { c.nodes[0].device.reduction = -1; }) ==
        "nodes[0].device.reduction: expected 0 bytes/s or more, got -1");
  CHECK(why([](C c) { c.nodes[0].device.flops.clear(); }) ==
        "nodes[0].device.flops: expected one type at least");
  CHECK(why([](C c) { c.nodes[0].device.flops[0].gemm = 0; }) ==
        "nodes[0].device.flops[0].gemm: expected more than 0 FLOP/s, got 0");
  CHECK(why([](C c) { c.nodes[0].device.flops[0].conv = -2; }) ==
        "nodes[0].device.flops[0].conv: expected more than 0 FLOP/s, got -2");
  CHECK(why([](C c) { c.nodes[0].device.flops[0].dtype = DType::i32; }) ==
        "nodes[0].device.flops[0].dtype: expected floating point numbers, got i32");
  CHECK(why([](C c) {
          c.nodes[0].device.flops.push_back({DType::f32, 1, 1});
        }) == "nodes[0].device.flops[1].dtype: f32 is given twice");
  CHECK(why([](C c) {
          c.nodes.push_back(c.nodes[0]);
          c.nodes[1].device.memory = 0;
        }) == "nodes[1].device.memory: expected more than 0 bytes, got 0");
  CHECK(why([](C c) { c.inside.latency = -1e-6; }) ==
        "inside.latency: expected 0 seconds or more, got -1e-06");
  CHECK(why([](C c) { c.inside.bandwidth = 0; }) ==
        "inside.bandwidth: expected more than 0 bytes/s, got 0");
  CHECK(why([&](C c) { c.across.latency = inf; }) ==
        "across.latency: expected 0 seconds or more, got inf");
  CHECK(why([&](C c) { c.across.bandwidth = nan; }) ==
        "across.bandwidth: expected more than 0 bytes/s, got nan");
  CHECK(why([](C c) { c.sharers = 5; }) ==
        "sharers: expected 1 to 4, the devices of a node, got 5");
  CHECK_FALSE(why([](C c) { c.sharers = 0; }).empty());
  CHECK(why([](C c) { c.contention = 0.99; }) == "contention: expected 1 or more, got 0.99");
  CHECK_FALSE(why([&](C c) { c.contention = nan; }).empty());
  CHECK(why([](C c) { c.measured[0].op = Collective::barrier; }) ==
        "measured[0].op: expected what moves bytes, got barrier");
  CHECK(why([](C c) { c.measured[0].ranks = 1; }) ==
        "measured[0].ranks: expected 2 or more, got 1");
  CHECK(why([](C c) { c.measured[1].stride = 0; }) ==
        "measured[1].stride: expected 1 or more, got 0");
  CHECK(why([](C c) { c.measured[1].bytes = -5; }) ==
        "measured[1].bytes: expected more than 0 bytes, got -5");
  CHECK(why([](C c) { c.measured[1].seconds = 0; }) ==
        "measured[1].seconds: expected more than 0 seconds, got 0");
  CHECK(why([](C c) { c.measured[2].bytes = 100; }) ==
        "measured[2].bytes: expected more than those of measured[0], 100, got 100");
}
