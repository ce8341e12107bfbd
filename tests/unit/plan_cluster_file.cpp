// Clusters that are ready-made, and those that are files.
#include "catch.hpp"
#include "support/error_of.hpp"

#include <lamina/plan/cluster.hpp>

#include <cstdio>
#include <set>

using namespace lamina;
using lamina::test::error_of;

namespace {

/// One with everything that a file can say.
Cluster full() {
  DeviceModel fast = {.name = "fast \"one\"",
                      .memory = 15.5 * (1 << 30),
                      .bandwidth = 123.456789012345e9,
                      .flops = {{DType::f32, 1.1e12, 0.7e12}, {DType::bf16, 3e12, 2e12}},
                      .launch = 3.3e-6,
                      .reduction = 21.7e9};
  DeviceModel slow = fast;
  slow.name.clear(), slow.reduction = 0, slow.launch = 0;
  return {.name = "both",
          .nodes = {{2, fast}, {3, slow}},
          .devices_per_node = 2,
          .inside = {1.7e-6, 12.3e9},
          .across = {0, 0.1e9},
          .sharers = 2,
          .contention = 1.13,
          .measured = {{Collective::all_reduce, 2, 1, 1024, 10.1e-6},
                       {Collective::all_reduce, 2, 1, 4096, 12.7e-6},
                       {Collective::halo, 2, 2, 1024, 1e-7, true}}};
}

bool same(const DeviceModel& a, const DeviceModel& b) {
  bool alike = a.name == b.name && a.memory == b.memory && a.bandwidth == b.bandwidth &&
               a.launch == b.launch && a.reduction == b.reduction &&
               a.flops.size() == b.flops.size();
  for (std::size_t i = 0; alike && i < a.flops.size(); ++i)
    alike = a.flops[i].dtype == b.flops[i].dtype && a.flops[i].gemm == b.flops[i].gemm &&
            a.flops[i].conv == b.flops[i].conv;
  return alike;
}

bool same(const Cluster& a, const Cluster& b) {
  const auto links = [](const Link& x, const Link& y) {
    return x.latency == y.latency && x.bandwidth == y.bandwidth;
  };
  bool alike = a.name == b.name && a.devices_per_node == b.devices_per_node &&
               links(a.inside, b.inside) && links(a.across, b.across) && a.sharers == b.sharers &&
               a.contention == b.contention && a.nodes.size() == b.nodes.size() &&
               a.measured.size() == b.measured.size();
  for (std::size_t i = 0; alike && i < a.nodes.size(); ++i)
    alike = a.nodes[i].count == b.nodes[i].count && same(a.nodes[i].device, b.nodes[i].device);
  for (std::size_t i = 0; alike && i < a.measured.size(); ++i) {
    const CommCeiling &p = a.measured[i], &q = b.measured[i];
    alike = p.op == q.op && p.ranks == q.ranks && p.stride == q.stride && p.bytes == q.bytes &&
            p.seconds == q.seconds && p.disturbed == q.disturbed;
  }
  return alike;
}

std::string replaced(std::string in, const std::string& what, const std::string& by) {
  const std::size_t at = in.find(what);
  REQUIRE(at != in.npos);
  return in.replace(at, what.size(), by);
}

}  // namespace

TEST_CASE("ready-made clusters are sound, and bear their names") {
  std::set<std::string_view> names;
  for (const auto name : cluster_names()) {
    const Cluster c = ready_cluster(name);
    CAPTURE(name);
    CHECK(c.name == name);
    CHECK(c.node_count() == 1);
    check_cluster(c);
    check_cluster(c.of(4096));
    CHECK(same(parse_cluster(cluster_json(c)), c));
    CHECK(c.nodes[0].device.flops_of(DType::bf16).gemm > 0);
    // Convolutions are no faster than matrices, and memory no faster than the links are slow.
    for (const auto& f : c.nodes[0].device.flops) CHECK(f.conv <= f.gemm);
    CHECK(c.nodes[0].device.bandwidth > c.inside.bandwidth);
    names.insert(name);
  }
  CHECK(names == std::set<std::string_view>{"v100-100g", "h100-ndr", "h200-ndr", "cpu-1g",
                                            "cpu-10g", "cpu-100g"});
}

TEST_CASE("ready-made clusters have the numbers of their sources") {
  const Cluster v = ready_cluster("v100-100g"), h = ready_cluster("h100-ndr");
  CHECK(v.devices() == 4);
  CHECK(v.sharers == 4);
  CHECK(v.nodes[0].device.memory == 17179869184.0);
  CHECK(v.across_with(4).bandwidth == 3e9);
  CHECK(h.devices() == 8);
  CHECK(h.across_with(8).bandwidth == 48e9);
  CHECK(h.nodes[0].device.flops_of(DType::bf16).gemm == 797.5e12);
  CHECK(h.nodes[0].device.flops_of(DType::f32).gemm == 51.9e12);
  CHECK(ready_cluster("h200-ndr").nodes[0].device.bandwidth == 4300e9);
  CHECK(ready_cluster("h200-ndr").inside.bandwidth == h.inside.bandwidth);
  CHECK(ready_cluster("cpu-1g").across.bandwidth == 107e6);
  CHECK(ready_cluster("cpu-10g").across.bandwidth == 1111e6);
  // NCCL's cost model of small all-reduces, within a fifth: on 4 and 8 devices, and 2 to 8 nodes.
  const auto small = [](const Cluster& c, std::vector<int> ranks) {
    return 1e6 * collective_time(c, Collective::all_reduce, 8, ranks);
  };
  CHECK(small(h, {0, 1, 2, 3}) == Approx(10.2).epsilon(0.2));
  CHECK(small(h, {0, 1, 2, 3, 4, 5, 6, 7}) == Approx(15.0).epsilon(0.2));
  CHECK(small(h.of(64), {0, 8}) == Approx(12.0).epsilon(0.2));
  CHECK(small(h.of(64), {0, 8, 16, 24}) == Approx(22.8).epsilon(0.2));
  CHECK(small(h.of(64), {0, 8, 16, 24, 32, 40, 48, 56}) == Approx(36.8).epsilon(0.2));
}

TEST_CASE("an unknown cluster is an error with the nearest name") {
  CHECK(error_of([] { ready_cluster("h100-ndt"); }) ==
        "cluster 'h100-ndt' is not known (did you mean h100-ndr?): expected one of v100-100g, "
        "h100-ndr, h200-ndr, cpu-1g, cpu-10g, cpu-100g, or a file");
  CHECK(error_of([] { find_cluster("h100-ndt"); }) == error_of([] { ready_cluster("h100-ndt"); }));
  CHECK_THAT(error_of([] { find_cluster(""); }), ContainsSubstring("is not known"));
  CHECK_THAT(error_of([] { find_cluster("there/is/none"); }), ContainsSubstring("there/is/none: "));
  CHECK(find_cluster("cpu-1g").name == "cpu-1g");
}

TEST_CASE("a cluster survives its file") {
  const Cluster c = full();
  check_cluster(c);
  CHECK(same(parse_cluster(cluster_json(c)), c));
  CHECK(cluster_json(parse_cluster(cluster_json(c))) == cluster_json(c));
  for (const std::string path : {"plan_cluster.json", "plan_cluster_named"}) {
    write_cluster(path, c);
    CHECK(same(read_cluster(path), c));
    CHECK(same(find_cluster(path), c));
    std::remove(path.c_str());
  }
  // Ready-made names win over files; a path is none.
  write_cluster("cpu-1g", c);
  CHECK(find_cluster("cpu-1g").name == "cpu-1g");
  CHECK(find_cluster("./cpu-1g").name == "both");
  std::remove("cpu-1g");
  // What has more digits than are written comes back the same from then on.
  Cluster third = c;
  third.inside.latency = 1e-6 / 3;
  const Cluster once = parse_cluster(cluster_json(third));
  CHECK(once.inside.latency == Approx(1e-6 / 3).epsilon(1e-14));
  CHECK(same(parse_cluster(cluster_json(once)), once));
}

TEST_CASE("a cluster's file is as it is documented") {
  Cluster c = full();
  c.nodes.pop_back(), c.measured.erase(c.measured.begin() + 1);
  CHECK(cluster_json(c) == R"({
  "schema": "lamina-cluster",
  "version": 1,
  "name": "both",
  "devices_per_node": 2,
  "sharers": 2,
  "contention": 1.13,
  "nodes": [
    {"count": 2, "device": {"name": "fast \"one\"", "memory_gib": 15.5, )"
                           R"("bandwidth_gbs": 123.456789012345, "launch_us": 3.3, )"
                           R"("reduction_gbs": 21.7,
      "flops": [
        {"dtype": "f32", "gemm_tflops": 1.1, "conv_tflops": 0.7},
        {"dtype": "bf16", "gemm_tflops": 3.0, "conv_tflops": 2.0}
      ]}}
  ],
  "inside": {"latency_us": 1.7, "bandwidth_gbs": 12.3},
  "across": {"latency_us": 0.0, "bandwidth_gbs": 0.1},
  "measured": [
    {"op": "all_reduce", "ranks": 2, "stride": 1, "bytes": 1024.0, "time_us": 10.1},
    {"op": "halo", "ranks": 2, "stride": 2, "bytes": 1024.0, "time_us": 0.1, "disturbed": true}
  ]
}
)");
  // The least that there must be.
  const Cluster least = parse_cluster(R"({"schema": "lamina-cluster", "version": 1,
    "devices_per_node": 1, "inside": {"latency_us": 1, "bandwidth_gbs": 10},
    "across": {"latency_us": 30, "bandwidth_gbs": 1.25}, "nodes": [{"count": 8, "device":
    {"memory_gib": 4, "bandwidth_gbs": 20, "launch_us": 0.5,
     "flops": [{"dtype": "f32", "gemm_tflops": 0.2, "conv_tflops": 0.1}]}}]})");
  CHECK(least.devices() == 8);
  CHECK(least.sharers == 1);
  CHECK(least.contention == 1);
  CHECK(least.across.bandwidth == 1.25e9);
  CHECK(least.across.latency == 30e-6);
  CHECK(least.nodes[0].device.memory == 4294967296.0);
  CHECK(least.nodes[0].device.launch == 0.5e-6);
  CHECK(least.nodes[0].device.flops_of(DType::f16).conv == 0.1e12);
}

TEST_CASE("a file that is no good cluster says so in one line") {
  const std::string good = cluster_json(full());
  const auto why = [&](const std::string& what, const std::string& by) {
    return error_of([&] { parse_cluster(replaced(good, what, by)); });
  };
  CHECK_THAT(error_of([] { parse_cluster(""); }), ContainsSubstring("not valid JSON, near byte"));
  CHECK(error_of([] { parse_cluster("[]"); }) == "not a cluster: expected schema 'lamina-cluster'");
  CHECK_THAT(error_of([] { parse_cluster(R"({"schema": "lamina-plan"})"); }),
             ContainsSubstring("not a cluster"));
  CHECK(why("\"version\": 1", "\"version\": 2") ==
        "version: expected 1, of the cluster schema, got 2");
  CHECK(why("\"sharers\"", "\"sharer\"") ==
        "expected no members but schema, version, name, devices_per_node, sharers, contention, "
        "nodes, inside, across, measured, and not 'sharer', got an object");
  CHECK_THAT(why("\"memory_gib\"", "\"memory_gb\""),
             ContainsSubstring("nodes[0].device: expected no members but name, memory_gib, "));
  CHECK_THAT(why("\"gemm_tflops\"", "\"gemm\""),
             ContainsSubstring("nodes[0].device.flops[0]: expected no members but dtype, "));
  CHECK_THAT(why("\"time_us\"", "\"time\""), ContainsSubstring("measured[0]: expected no members"));
  CHECK(why("\"sharers\": 2", "\"sharers\": 2, \"sharers\": 2") == "'sharers' is given twice");
  CHECK(why("\"memory_gib\": 15.5", "\"memory_gib\": 15.5,\"memory_gib\": 15.5") ==
        "'memory_gib' is given twice");
  CHECK(why("\"memory_gib\": 15.5,", "") == "nodes[0].device: expected a member 'memory_gib'");
  CHECK(why("\"memory_gib\": 15.5", "\"memory_gib\": 0") ==
        "nodes[0].device.memory_gib: expected a number above 0, got 0");
  CHECK(why("\"memory_gib\": 15.5", "\"memory_gib\": \"15\"") ==
        "nodes[0].device.memory_gib: expected a number above 0, got \"15\"");
  CHECK(why("\"memory_gib\": 15.5", "\"memory_gib\": 1e305") ==
        "nodes[0].device.memory: expected more than 0 bytes, got inf");
  CHECK(why("\"gemm_tflops\": 1.1", "\"gemm_tflops\": 1e305") ==
        "nodes[0].device.flops[0].gemm: expected more than 0 FLOP/s, got inf");
  CHECK_THAT(why("\"gemm_tflops\": 1.1", "\"gemm_tflops\": 1e999"),
             ContainsSubstring("a number is too large"));
  CHECK(why("\"latency_us\": 1.7", "\"latency_us\": -1.7") ==
        "inside.latency_us: expected a number of at least 0, got -1.7");
  CHECK(why("\"bandwidth_gbs\": 12.3", "\"bandwidth_gbs\": null") ==
        "inside.bandwidth_gbs: expected a number above 0, got null");
  CHECK(why("\"count\": 2", "\"count\": 2.5") ==
        "nodes[0].count: expected a whole number from 1 to 2147483647, got 2.5");
  CHECK_THAT(why("\"count\": 2", "\"count\": 2000000"), ContainsSubstring("up to 1048576 devices"));
  CHECK(why("\"sharers\": 2", "\"sharers\": 3") ==
        "sharers: expected 1 to 2, the devices of a node, got 3");
  CHECK(why("\"contention\": 1.13", "\"contention\": 0.5") ==
        "contention: expected a number of at least 1, got 0.5");
  CHECK(why("\"dtype\": \"bf16\"", "\"dtype\": \"f32\"") ==
        "nodes[0].device.flops[1].dtype: f32 is given twice");
  CHECK(why("\"dtype\": \"bf16\"", "\"dtype\": \"bf17\"") ==
        "nodes[0].device.flops[1].dtype: expected a known name, got \"bf17\"");
  CHECK(why("\"op\": \"halo\"", "\"op\": \"barrier\"") ==
        "measured[2].op: expected what moves bytes, got barrier");
  CHECK(why("\"bytes\": 4096.0", "\"bytes\": 512") ==
        "measured[1].bytes: expected more than those of measured[0], 1024, got 512");
  CHECK(why("\"disturbed\": true", "\"disturbed\": 1") ==
        "measured[2].disturbed: expected true or false, got 1");
  CHECK_THAT(why("\"name\": \"both\"", "\"name\": [[[[[[[[[[1]]]]]]]]]]"),
             ContainsSubstring("nested more than 8 levels deep"));
  CHECK_THAT(why("\"name\": \"both\"", "\"name\": 7"),
             ContainsSubstring("name: expected a string"));
  // The file is named, too.
  const std::string path = "plan_cluster_bad.json";
  {
    std::FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file);
    std::fputs(replaced(good, "\"sharers\": 2", "\"sharers\": 3").c_str(), file);
    std::fclose(file);
  }
  CHECK(error_of([&] { find_cluster(path); }) ==
        path + ": sharers: expected 1 to 2, the devices of a node, got 3");
  std::remove(path.c_str());
}

TEST_CASE("no byte of a cluster can do harm", "[fuzz]") {
  const std::string good = cluster_json(full());
  REQUIRE(error_of([&] { parse_cluster(good); }).empty());
  for (std::size_t i = 0; i < good.size(); ++i) {
    const bool whole = i + 1 == good.size();  // all but the last newline
    CHECK(error_of([&] { parse_cluster(good.substr(0, i)); }).empty() == whole);
    for (const char c : {'\0', '"', '{', '}', ':', '9', '-', '\xff', ','}) {
      std::string bad = good;
      bad[i] = c;
      const std::string why = error_of([&] { parse_cluster(bad); });
      CHECK(why.find('\n') == std::string::npos);
      CHECK(why.size() < 600);
    }
  }
}
