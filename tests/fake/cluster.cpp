// Ranks with GPUs as a cluster: collectives are timed where they run, and a plan is found there.
#include "catch.hpp"
#include "fake/ranks.hpp"
#include "machine/cache.hpp"
#include "machine/measure.hpp"
#include "machine/time_collective.hpp"
#include "support/cache_folder.hpp"
#include "support/training.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/train/choose_plan.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Made up, but for the collectives: what a stand-in computes at most is of no interest.
Machine measured(const World& world, const Backend& backend) {
  using Kind = ComputeCeiling::Kind;
  Machine m;
  m.host = "made", m.cpu = "CPU", m.backend = backend.description(), m.date = "2026-01-31";
  m.ranks = world.size(), m.launch = 1e-6;
  for (const DType t : {DType::f64, DType::f32})
    for (const Kind kind : {Kind::fma, Kind::gemm, Kind::conv})
      m.compute.push_back({kind, text(name(t), int(kind)), t, {100e9, 100e9}});
  m.memory = {{"memory", 0, {20e9, 18e9}, {25e9, 20e9}, {21e9, 19e9}}};
  m.comm =
      detail::measure_collectives(world, backend.memory(), {.transfer = 1e-4, .max_bytes = 16384});
  return m;
}

/// Throws where a collective on what lies in the memory of GPUs gives something else.
void time_all(const World& world, MemorySpace& memory) {
  for (const Collective op : detail::timed_collectives())
    for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
      detail::TimedCollective timed(world.comm(), op, t, 1000, memory);
      const double wrong = timed.wrong();
      check(wrong == 0, name(op), " of ", name(t), ": ", wrong, " elements are wrong");
      check(timed.time(3) > 0, name(op), " takes no time");
    }
}

}  // namespace

TEST_CASE("collectives on what lies on GPUs are timed by NCCL, and by way of the host") {
  on_gpus(3, [](const Rank& r) { time_all(r.world, r.memory); });
  run_ranks(3, [](World& world) {
    see_gpu(world.rank());
    cuda::Memory memory(0);
    time_all(world, memory);
  });
}

TEST_CASE("what is kept of collectives by NCCL holds for no others") {
  const CacheFolder folder;
  std::string direct, by_host;
  const auto note_file = [](const World& world, std::string& to) {
    set_threads(1);
    const std::string file = detail::cache_file(world, *reference_backend());
    if (world.rank() == 0) to = file;
  };
  on_gpus(2, [&](const Rank& r) { note_file(r.world, direct); });
  run_ranks(2, [&](World& world) {
    see_gpu(world.rank());
    note_file(world, by_host);
  });
  CHECK(!direct.empty());
  CHECK(direct != by_host);
}

TEST_CASE("ranks with GPUs are measured as a cluster, and find a plan") {
  const CacheFolder folder;
  std::vector<std::string> names;
  on_gpus(2, [&](const Rank& r) {
    set_threads(1);
    const auto backend = reference_backend();
    const Machine machine = detail::cached_or(measured, r.world, *backend, false);
    check(!machine.comm.empty(), "no collective was measured");
    const Cluster cluster = measure_cluster(r.world, *backend);
    const DeviceModel& gpu = cluster.nodes.at(0).device;
    check(gpu.name == backend->description(), "the device is ", gpu.name);
    const double has = double(backend->memory().total_bytes());
    check(gpu.memory > 0.5 * has && gpu.memory <= has, "a GPU has ", gpu.memory, " bytes");
    check(cluster.devices() == 2 && cluster.inside.bandwidth > 0 && cluster.contention >= 1,
          "contention ", cluster.contention, ", ", cluster.inside.bandwidth, " bytes/s");
    const ChosenPlan chosen = plan(local_norm_network(), r.world, SGD{.rate = 0.05},
                                   {.batch = 12, .backend = "reference"}, {.rounds = 1});
    check(chosen.calibration.measured > 0, "no layer was measured");
    const double planned = chosen.calibration.cluster.nodes.at(0).device.memory;
    check(planned <= 0.8 * has, "nothing of ", has, " bytes is in reserve: ", planned);
    for (const TimedPlan& timed : chosen.timed)
      check(timed.median > 0, timed.name, " took no time");
    if (r.number() == 0)
      for (const TimedPlan& timed : chosen.timed) names.push_back(timed.name);
  });
  CHECK(std::ranges::find(names, "data") != names.end());
  CHECK(names.size() > 1);
}

TEST_CASE("ranks that share a GPU share its memory") {
  const CacheFolder folder;
  run_ranks(2, [](World& world) {
    see_gpu(0);
    set_threads(1);
    const auto backend = reference_backend();
    detail::cached_or(measured, world, *backend, false);
    const double has = double(backend->memory().total_bytes());
    const double each = measure_cluster(world, *backend).nodes.at(0).device.memory;
    check(each > 0.4 * has && each <= 0.5 * has, "of ", has, " bytes each has ", each);
  });
}
