// Collectives between GPUs, put into streams: what they come to, in which order, and what they
// cost.
#include "catch.hpp"
#include "fake/nccl_group.hpp"
#include "fake/ranks.hpp"
#include "support/colors.hpp"
#include "support/training.hpp"

#include <lamina/base/clock.hpp>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// How many communicators know of a tensor's memory; -1: it is not NCCL's.
int known(const Tensor& x) {
  const std::lock_guard lock(nccl_guard);
  const auto at = nccl_memory.find(x.view().data);
  return at == nccl_memory.end() ? -1 : at->second;
}

double value(int rank, std::int64_t i) { return double((rank + 1) * 10 + i % 7); }

template <class T>
void sums(const Rank& r) {
  const int n = r.size(), rank = r.number();
  const std::int64_t count = 37;
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (int k = 0; k < n; ++k) total += value(k, i);
    return total;
  };
  const auto mine = [&](std::int64_t i) { return value(rank, i); };
  Tensor x = r.filled<T>(count, mine);
  r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
  r.expect<T>("sum", x, sum);
  x = r.filled<T>(count, mine);
  r.comm().all_reduce(r.stream, pass, x, ReduceOp::max).wait(r.stream);
  r.expect<T>("max", x, [&](auto i) { return value(n - 1, i); });
  x = r.filled<T>(count, mine);
  r.comm().all_reduce(r.stream, pass, x, ReduceOp::min).wait(r.stream);
  r.expect<T>("min", x, [&](auto i) { return value(0, i); });
  const Tensor whole = r.filled<T>(count * n, mine), part = r.filled<T>(count, mine);
  r.comm().reduce_scatter(r.stream, pass, whole, part).wait(r.stream);
  r.expect<T>("part", part, [&](auto i) { return sum(rank * count + i); });
}

template <class T>
void moves(const Rank& r) {
  const int n = r.size(), rank = r.number();
  const std::int64_t count = 37;
  const auto mine = [&](std::int64_t i) { return value(rank, i); };
  const auto zero = [](std::int64_t) { return 0.0; };
  const Tensor whole = r.filled<T>(count * n, zero), x = r.filled<T>(count, mine);
  r.comm().all_gather(r.stream, pass, x, whole).wait(r.stream);
  const auto gathered = [&](auto i) { return value(int(i / count), i % count); };
  r.expect<T>("gathered", whole, gathered);
  const Tensor wide = r.filled<T>(count * n, mine), other = r.filled<T>(count * n, zero);
  r.comm().all_to_all(r.stream, pass, wide, other).wait(r.stream);
  r.expect<T>("all to all", other,
              [&](auto i) { return value(int(i / count), rank * count + i % count); });
  // A ring, then a line whose ends have one neighbour only.
  Tensor y = r.filled<T>(count, zero);
  const int next = (rank + 1) % n, last = (rank + n - 1) % n;
  r.comm().exchange(r.stream, pass, x, next, y, last).wait(r.stream);
  r.expect<T>("ring", y, [&](auto i) { return value(last, i); });
  y = r.filled<T>(count, zero);
  r.comm().exchange(r.stream, pass, x, rank + 1 < n ? next : -1, y, rank - 1).wait(r.stream);
  r.expect<T>("line", y, [&](auto i) { return rank > 0 ? value(last, i) : 0.0; });
  // One message; those without one say where it would lie.
  if (n > 1) {
    const View nothing(nullptr, {{0, 1, 1, 1}, dtype_of<T>, {}}, &r.memory);
    y = r.filled<T>(count, zero);
    r.comm()
        .exchange(r.stream, pass, rank == 0 ? x.view() : nothing, rank == 0 ? 1 : -1,
                  rank == 1 ? y.view() : nothing, rank == 1 ? 0 : -1)
        .wait(r.stream);
    r.expect<T>("message", y, [&](auto i) { return rank == 1 ? value(0, i) : 0.0; });
  }
  const Tensor root = r.filled<T>(count, mine);
  r.comm().broadcast(r.stream, pass, root, n - 1).wait(r.stream);
  r.expect<T>("broadcast", root, [&](auto i) { return value(n - 1, i); });
}

template <class T>
void every_collective(const Rank& r) {
  sums<T>(r);
  moves<T>(r);
}

}  // namespace

TEST_CASE("every collective between GPUs equals its closed form on 1 to 4 ranks") {
  for (int n = 1; n <= 4; ++n) {
    on_gpus(n, every_collective<float>);
    on_gpus(n, every_collective<double>);
    on_gpus(n, every_collective<std::int32_t>);
    on_gpus(n, every_collective<BF16>);
    on_gpus(n, every_collective<F16>);
  }
}

TEST_CASE("collectives of several groups run in program order, and host values travel beside") {
  on_gpus(4, [](const Rank& r) {
    const Communicator rows = split(r.comm(), r.number() / 2);
    const Communicator columns = split(r.comm(), r.number() % 2);
    const Communicator alone = split(r.comm(), r.number());
    const Tensor x = r.filled<double>(1, [&](auto) { return r.number() + 1; });
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {  // doubles and mixes: any other order gives another number
      pending.push_back(rows.all_reduce(r.stream, pass, x));
      pending.push_back(columns.broadcast(r.stream, pass, x, 0));
      pending.push_back(alone.all_reduce(r.stream, pass, x));
      if (i % 7 == 0) check(rows.all_reduce_value(1) == 2, "a host value");
    }
    for (Pending& p : pending) p.wait(r.stream);
    r.expect<double>("mixed", x, [](auto) { return 3.0 * (1 << 19); });
    check(r.comm().carrier() == "NCCL, and threads", r.comm().carrier());
  });
}

TEST_CASE("a group can be made of a group while others compute") {
  on_gpus(4, [](const Rank& r) {
    const Tensor x = r.filled<float>(5, [](auto) { return 1; });
    Pending under_way = r.comm().all_reduce(r.stream, pass, x);
    const Communicator some = split(r.comm(), r.number() == 2 ? -1 : 0);
    const Communicator two = split(some, some.rank() < 2 ? 0 : -1);
    under_way.wait(r.stream);
    two.all_reduce(r.stream, pass, x).wait(r.stream);
    const bool in = r.number() < 2;
    r.expect<float>("of a group", x, [&](auto) { return in ? 8.0 : 4.0; });
  });
}

TEST_CASE("groups that nobody uses any more are given out again") {
  std::atomic<int> after_one = 0;
  on_gpus(4, [&](const Rank& r) {
    for (int i = 0; i < 20; ++i) {
      const Communicator rows = split(r.comm(), r.number() / 2);
      const Communicator some = split(r.comm(), r.number() == i % 2 ? 0 : 1);
      const Communicator same = split(r.comm(), r.number() / 2);  // while the first one is used
      const Tensor x = r.filled<float>(5, [&](auto) { return r.number(); });
      rows.all_reduce(r.stream, pass, x).wait(r.stream);
      same.all_reduce(r.stream, pass, x).wait(r.stream);
      if (some.size() > 1) some.all_reduce(r.stream, pass, x).wait(r.stream);
      const double row = r.number() < 2 ? 2 : 10;  // (0 + 1) and (2 + 3), twice
      r.expect<float>("summed", x, [&](auto) { return some.size() > 1 ? 2 + 10 + 10 : row; });
      r.comm().barrier();
      if (i == 1) after_one = nccl_made.load();
      r.comm().barrier();
    }
    check(nccl_made == after_one, "communicators were made for groups that there had been");
  });
}

TEST_CASE("each communicator knows of the memory that is made for collectives, until it goes") {
  const Form form{{100, 1, 1, 1}, DType::f32, {}};
  on_gpus(3, [&](const Rank& r) {
    Tensor x = r.comm().tensor(form, r.memory);
    check(known(x) == 1, "rank ", r.number(), ": ", known(x), " know of x");
    const Communicator some = split(r.comm(), r.number() < 2 ? 0 : -1);
    const Tensor later = r.comm().tensor(form, r.memory), of_some = some.tensor(form, r.memory);
    const int all = r.number() < 2 ? 2 : 1;
    check(known(x) == all && known(later) == all, "rank ", r.number(), ": ", known(x),
          " know of x,", known(later), " of what came later");
    check(known(of_some) == (r.number() < 2 ? 2 : -1), known(of_some), " know of a group's");
    check(known(r.comm().tensor(form)) == -1 &&
              !r.comm().tensor({{0, 1, 1, 1}, DType::f32, {}}, r.memory).view(),
          "NCCL has what lies on the host, or nothing");
    r.expect<float>("made", x, [](auto) { return 0.0; });
    r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
    const void* const was = x.view().data;
    x = Tensor(form, r.memory);  // while its collective runs
    const std::lock_guard lock(nccl_guard);
    check(!nccl_memory.contains(was), "it has not gone");
  });
  CHECK(nccl_memory.empty());
  CHECK(nccl_known_at_end == 0);
}

TEST_CASE("where NCCL has no memory, collectives take any") {
  nccl_has_memory = false;
  on_gpus(2, [&](const Rank& r) {
    const Tensor x = r.comm().tensor({{100, 1, 1, 1}, DType::f32, {}}, r.memory);
    check(known(x) == -1, "it is NCCL's");
    r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
    r.expect<float>("summed", x, [](auto) { return 0.0; });
  });
  nccl_has_memory = true;
}

TEST_CASE("what a trainer sums and gathers is memory of NCCL's") {
  const bool sharded = GENERATE(false, true);
  CAPTURE(sharded);
  const auto data = small_data(48);
  on_gpus(2, [&](const Rank& r) {
    set_threads(1);
    const Network net = small_network(false);
    Trainer trainer(net, r.world, SGD{.rate = 0.05},
                    {.batch = 12,
                     .backend = "reference",
                     .splits = std::vector(net.graph().size(), Split{.batch = 2}),
                     .shard_optimizer = sharded});
    auto loader = trainer.loader(*data, true);
    for (int i = 0; i < 10; ++i) trainer.step(loader, 10);
    r.comm().barrier();
    const std::size_t buffers = [] {
      const std::lock_guard lock(nccl_guard);
      return nccl_memory.size();
    }();
    r.comm().barrier();  // from here on they go
    check(buffers == (sharded ? 4 : 2), buffers, " buffers");
  });
  CHECK(nccl_memory.empty());
  CHECK(nccl_known_at_end == 0);
}

TEST_CASE("the host waits for no collective, and events are used again") {
  std::atomic<std::int64_t> waits = 0, allocations = 0;
  on_gpus(3, [&](const Rank& r) {
    const Tensor x = r.filled<float>(100, [](auto) { return 1; });
    const Tensor y = r.filled<float>(100, [](auto) { return 0; });
    for (int step = 0; step < 60; ++step) {
      r.comm().barrier();  // counts are of all ranks
      const FakeCounts before = fake_counts();
      r.comm().barrier();
      for (int i = 0; i < 4; ++i) {
        Pending sum = r.comm().all_reduce(r.stream, pass, x, ReduceOp::max);
        r.memory.carry(r.stream, y.view().data, y.view().data, 4);  // computes meanwhile
        sum.wait(r.stream);
        r.memory.carry(r.stream, x.view().data, y.view().data, x.view().bytes());
      }
      r.comm().barrier();
      const FakeCounts after = fake_counts();
      waits += after.waits - before.waits;
      if (r.number() == 0) allocations += after.allocations - before.allocations;
      r.comm().barrier();
      r.stream.wait();
    }
    r.expect<float>("copied", y, [](auto) { return 1.0; });
  });
  CHECK(waits == 0);
  // Of each rank four before collectives, four behind, and one that a step ends with: as many as
  // can be under way at once, however many steps there are.
  CHECK(allocations <= 3 * 9);
}

TEST_CASE("a collective waits for what writes its buffer, and what reads it for the collective") {
  on_gpus(2, [](const Rank& r) {
    const std::int64_t count = 1000;
    const Tensor x = r.filled<float>(count, [](auto) { return 0; });
    const Tensor one = r.filled<float>(count, [](auto) { return 1; });
    const Tensor kept = r.filled<float>(count, [](auto) { return 0; });
    for (int step = 0; step < 30; ++step) {
      r.memory.carry(r.stream, one.view().data, x.view().data, x.view().bytes());
      Pending sum = r.comm().all_reduce(r.stream, pass, x);
      sum.wait(r.stream);
      r.memory.carry(r.stream, x.view().data, kept.view().data, x.view().bytes());
      if (step % 3 == 0) r.expect<float>("summed", kept, [](auto) { return 2.0; });
    }
    r.expect<float>("summed", kept, [](auto) { return 2.0; });
  });
}

TEST_CASE("a Pending that goes waits for its collective") {
  on_gpus(2, [](const Rank& r) {
    Tensor x = r.filled<float>(10, [](auto) { return 1; });
    { const Pending dropped = r.comm().all_reduce(r.stream, pass, x); }
    std::vector<float> now(10);
    r.memory.copy(x.view().data, now.data(), 40);  // waits for no stream
    for (const float v : now) check(v == 2, "got ", v);
    Pending p = r.comm().all_reduce(r.stream, pass, x);
    while (!p.done()) std::this_thread::yield();
  });
}

namespace {

struct Spans final : Recorder {
  ~Spans() override { retire(); }
  void record(const Span& span) override {
    const std::lock_guard lock(mutex);
    all.push_back(span);
  }
  std::mutex mutex;
  std::vector<Span> all;
};

}  // namespace

TEST_CASE("collectives between GPUs are recorded where somebody listens") {
  on_gpus(2, [](const Rank& r) {
    Spans spans;
    r.stream.record_to(&spans);
    r.stream.enter(7);
    const Tensor x = r.filled<float>(10, [](auto) { return 1; });
    for (int i = 0; i < 3; ++i) {
      r.stream.then([] {});  // for which no rank may have the driver wait for another one
      r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
    }
    r.stream.wait(), spans.await_all();
    int moved = 0, waited = 0;
    const std::lock_guard lock(spans.mutex);
    for (const Span& span : spans.all) {
      check(
          std::string_view(span.what) == "all_reduce" && span.layer == 7 && span.end >= span.begin,
          "span");
      if (span.lane == Lane::wait) ++waited;
      if (span.lane != Lane::communication) continue;
      ++moved;
      check(span.bytes == 40 && span.party.rank == r.number(), "what moved");
    }
    check(moved == 3 && waited == 3, moved, " and ", waited, " spans");
    r.stream.record_to(nullptr);
  });
}

TEST_CASE("collectives between GPUs are timed where they run, however late the host looks") {
  on_gpus(2, [](const Rank& r) {
    constexpr std::chrono::duration<double> late(0.2);
    Spans spans;
    const Tensor x = r.filled<float>(10, [](auto) { return 1; });
    const Tensor here({{3, 1, 1, 1}, DType::f32, {}});
    Stream other;
    // On rank 0 the communication thread waits for rank 1, on the host, while the GPUs do theirs.
    Pending by_host;
    if (r.number() == 0) by_host = r.comm().all_reduce(other, pass, here);
    r.stream.record_to(&spans);
    for (int i = 0; i < 3; ++i) {
      r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
      r.stream.wait();
    }
    const double last = now();
    r.stream.record_to(nullptr);
    if (r.number() == 1) {
      std::this_thread::sleep_for(late);
      by_host = r.comm().all_reduce(other, pass, here);
    }
    by_host.wait(other);
    spans.await_all();
    int moved = 0;
    const std::lock_guard lock(spans.mutex);
    for (const Span& span : spans.all) {
      if (span.lane != Lane::communication) continue;
      ++moved;
      check(span.end < last + late.count() / 2 && span.end > span.begin, "ended ", span.end - last,
            " s after the GPU, took ", span.end - span.begin);
    }
    check(moved == 3, moved, " spans");
  });
}

TEST_CASE("GPUs of one process reach each other's memory") {
  fake_gpus(3);
  run_ranks(3, [](World& world) {
    const int gpu = 2 - world.rank();
    world.carry_over([&](auto threads) {
      return nccl_transport(std::move(threads), {Device::Kind::cuda, gpu});
    });
    cuda::Memory memory(gpu);
    Stream stream;
    every_collective<float>({world, memory, stream});
  });
  fake_gpus(1);
}

TEST_CASE("what does not lie on the GPU passes beneath NCCL") {
  on_gpus(2, [](const Rank& r) {
    Tensor x({{3, 1, 1, 1}, DType::f32, {}});
    for (float& v : x.elements<float>()) v = 1;
    r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
    for (const float v : x.elements<float>()) check(v == 2, "got ", v);
  });
}
