// Which GPU a rank gets by flags, where the stand-in has two.
#include "cli/session.hpp"

#include "catch.hpp"
#include "fake/ranks.hpp"

#include <lamina/kernels/gpu_name.hpp>

#include <string>
#include <vector>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What carries the collectives of ranks with these --backend and --comm, which compute on the GPUs
/// that are `expected`; or what is wrong.
std::string carrier_of(const std::vector<std::string>& backends, const std::string& comm,
                       const std::vector<int>& expected) {
  fake_gpus(2);
  std::string carrier;
  try {
    run_ranks(int(backends.size()), [&](World& world) {
      const auto me = std::size_t(world.rank());
      cli::RunOptions o;
      o.device = "cuda", o.backend = backends[me], o.comm = comm, o.threads = 1;
      cli::prepare(o, world);
      const int gpu = GpuName::of(o.backend)->number;
      check(gpu == expected[me], "rank ", me, " is on ", o.backend);
      cuda::Memory memory(gpu);
      Stream stream;
      const Rank r{world, memory, stream};
      const Tensor x = r.filled<float>(10, [](auto) { return 1; });
      cuda::Queue& queue = memory.queue_of(stream);
      queue.why_only_once();
      r.comm().all_reduce(stream, pass, x).wait(stream);
      const bool by_host = queue.why_only_once() != nullptr;
      r.expect<float>("sum", x, [](auto) { return 2.0; });
      check(by_host == (world.comm().carrier() == "threads"), "rank ", me, by_host ? "" : " not",
            " by way of the host");
      if (me == 0) carrier = world.comm().carrier();
    });
  } catch (const Error& e) {
    carrier = e.what();
  }
  fake_gpus(1);
  return carrier;
}

}  // namespace

TEST_CASE("ranks take GPUs in turn, or those that are named, and NCCL is between these") {
  const std::string nccl = "NCCL, and threads";
  CHECK(carrier_of({"auto", "auto"}, "auto", {0, 1}) == nccl);
  CHECK(carrier_of({"cuda:1", "cuda:0"}, "auto", {1, 0}) == nccl);
  CHECK(carrier_of({"cuda:1", "cuda:0"}, "nccl", {1, 0}) == nccl);
}

TEST_CASE("ranks that name the same GPU have no NCCL between them") {
  CHECK(carrier_of({"cuda:1", "auto"}, "auto", {1, 1}) == "threads");
  CHECK(carrier_of({"cuda:0", "cuda:0"}, "auto", {0, 0}) == "threads");
  CHECK_THAT(carrier_of({"cuda:0", "cuda:0"}, "nccl", {0, 0}),
             ContainsSubstring("ranks 0 and 1 have the same one"));
  CHECK_THAT(carrier_of({"cuda:0", "cuda:2"}, "auto", {0, 2}),
             ContainsSubstring("GPU 2: expected one from 0 to 1"));
}
