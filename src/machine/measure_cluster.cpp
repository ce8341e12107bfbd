// The ranks of this job as a cluster.
#include "machine/measure.hpp"

#include <lamina/base/median.hpp>
#include <lamina/comm/memory_per_rank.hpp>
#include <lamina/plan/calibrate.hpp>

#include <algorithm>
#include <tuple>

namespace lamina {

namespace {

/// A message's latency and bandwidth, by the smallest and the largest that were measured.
Link fitted(const std::vector<CommCeiling>& points, int stride, double bandwidth) {
  const CommCeiling *least = nullptr, *most = nullptr;
  for (const CommCeiling& c : points) {
    if (c.op != Collective::halo || c.ranks != 2 || c.stride != stride) continue;
    if (!least || c.bytes < least->bytes) least = &c;
    if (!most || c.bytes > most->bytes) most = &c;
  }
  if (!least) return {0, bandwidth};  // nobody sends anything
  Link link{least->seconds, most->bytes / most->seconds};
  if (most->seconds > least->seconds)
    link.bandwidth = (most->bytes - least->bytes) / (most->seconds - least->seconds);
  link.latency = std::max(0.0, least->seconds - least->bytes / link.bandwidth);
  return link;
}

/// How many times as long a convolution takes beside all-reduces.
double measured_contention(const World& world, const Backend& backend) {
  const Communicator& ranks = world.comm();
  if (ranks.size() == 1) return 1;
  const ConvGeometry g{.channels = 64, .kernel = 3, .bias = false};
  const Shape shape{8, 64, 30, 30};
  MemorySpace& memory = backend.memory();
  const auto kernel = backend.conv(g, backend.conv(g, {shape, DType::f32, {}})->inputs.at(0));
  const Tensor x(kernel->inputs.at(0), memory), w(kernel->w, memory), y(kernel->output, memory);
  constexpr std::int64_t elements = 2 << 20;
  const Tensor sent = ranks.tensor({{elements, 1, 1, 1}, DType::f32, {}}, memory);
  Stream stream;
  const auto compute = [&] { kernel->forward(stream, x, w, {}, y); };
  const auto send = [&] { return ranks.all_reduce(stream, Pass::update, sent); };
  const auto seconds_of = [&](const auto& work) {
    ranks.barrier();
    const double begin = now();
    work(), stream.wait();
    return ranks.all_reduce_value(now() - begin, ReduceOp::max);
  };
  compute(), send().wait(stream), stream.wait();
  const double transfer = seconds_of([&] { send().wait(stream); });
  const double once = seconds_of([&] { compute(); });
  // Not only while a transfer begins, which may be its busiest part; and as many kernels as end
  // before what is sent meanwhile, even if they take twice as long.
  const int kernels = std::clamp(int(std::max(0.02, transfer / 2) / once), 1, 1000);
  const int transfers = std::clamp(int(2 * kernels * once / transfer) + 1, 1, 1000);
  std::vector<double> ratios;
  for (int i = 0; i < 9; ++i) {
    const double alone = seconds_of([&] {
      for (int k = 0; k < kernels; ++k) compute();
    });
    std::vector<Pending> pending;
    ranks.barrier();
    for (int k = 0; k < transfers; ++k) pending.push_back(send());
    const double begin = now();
    for (int k = 0; k < kernels; ++k) compute();
    stream.wait();
    const double beside = ranks.all_reduce_value(now() - begin, ReduceOp::max);
    for (Pending& p : pending) p.wait(stream);
    ratios.push_back(beside / alone);
  }
  return std::max(1.0, median(ratios));
}

/// What rates the machine has in this type; nothing where it was not measured.
DeviceModel::Flops flops_of(const Machine& machine, DType dtype) {
  DeviceModel::Flops f{.dtype = dtype};
  using Kind = ComputeCeiling::Kind;
  for (const ComputeCeiling& c : machine.compute)
    if (c.dtype == dtype && c.kind != Kind::fma) {
      double& rate = c.kind == Kind::gemm ? f.gemm : f.conv;
      rate = std::max(rate, c.flops.together);
    }
  return f;
}

/// What is disturbed, or too small to be timed, tells nothing.
std::vector<CommCeiling> points_of(const Machine& machine) {
  std::vector<CommCeiling> points;
  for (const CommCeiling& c : machine.comm)
    if (!c.disturbed && c.seconds > 0 && c.bytes > 0 && c.ranks > 1) points.push_back(c);
  std::ranges::stable_sort(points, {}, [](const CommCeiling& c) {
    return std::tuple(c.op, c.ranks, c.stride, c.bytes);
  });
  const auto same = [](const CommCeiling& a, const CommCeiling& b) {
    return a.op == b.op && a.ranks == b.ranks && a.stride == b.stride && a.bytes == b.bytes;
  };
  points.erase(std::unique(points.begin(), points.end(), same), points.end());
  return points;
}

/// What the cache has, if that is enough, although some ceilings may be missing there.
Machine machine_of(const World& world, const Backend& backend) {
  bool found = false;
  Machine machine = cached_machine(world, backend, &found);
  const DeviceModel::Flops f = flops_of(machine, DType::f32);
  const std::vector<CommCeiling> points = points_of(machine);
  const auto has = [&](Collective op) {
    return world.size() == 1 || std::ranges::find(points, op, &CommCeiling::op) != points.end();
  };
  found = found && f.gemm > 0 && f.conv > 0 && machine.bandwidth() > 0 &&
          has(Collective::all_reduce) && has(Collective::halo);
  return found ? machine : cached_machine(world, backend);
}

}  // namespace

Cluster measure_cluster(const World& world, const Backend& backend) {
  const int ranks = world.size(), each = world.local_size();
  check(world.comm().all_reduce_value(each, ReduceOp::min) ==
            world.comm().all_reduce_value(each, ReduceOp::max),
        "nodes have unlike numbers of ranks");
  const Machine machine = machine_of(world, backend);
  DeviceModel device{.name = backend.memory().on_host() ? machine.cpu : machine.backend,
                     .memory = memory_per_rank(world, backend.memory()),
                     .bandwidth = machine.bandwidth(),
                     .launch = machine.launch};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (const auto f = flops_of(machine, dtype); f.gemm > 0 && f.conv > 0)
      device.flops.push_back(f);
  Cluster c{.name = machine.host, .nodes = {{ranks / each, device}}, .devices_per_node = each};
  c.measured = points_of(machine);
  // Neighbours are on one node where a node has several; ranks half of all apart never are.
  c.inside = fitted(c.measured, 1, device.bandwidth);
  c.across =
      each == 1 || ranks == each ? c.inside : fitted(c.measured, ranks / 2, device.bandwidth);
  c.contention = measured_contention(world, backend);
  check_cluster(c);
  return c;
}

}  // namespace lamina
