// Collectives that a device puts into streams of its own: what a Communicator makes of them.
#include "catch.hpp"
#include "support/allocations.hpp"

#include <lamina/comm/communicator.hpp>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace lamina;

namespace {

/// A device whose work is done as soon as it is put in, and what carries its memory.
struct AtOnce final : StreamQueue {
  void push(std::unique_ptr<Work>) override { ++works; }
  std::uint64_t mark() override { return ++marks; }
  bool past(std::uint64_t) noexcept override { return true; }
  void follow(const Event&) override { ++follows; }
  void run_to(std::uint64_t) override { ++waits; }
  std::uint64_t marks = 0;
  int works = 0, follows = 0, waits = 0;
};
struct OnDevice final : Transport {
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void run(const Operation&) override {}
  std::string carrier() const override { return "a device"; }
  std::shared_ptr<Transport> group(const std::vector<int>&) override { return nullptr; }
  bool reaches(const MemorySpace&) const override { return true; }
  Event put(const Operation& op) override {
    check(op.after.queue != queue, "behind itself");
    return {queue, queue->mark()};
  }
  void poll() override { check(!lost, "lost"); }
  void give_up(const std::exception_ptr&) noexcept override { given_up = true; }

  std::shared_ptr<AtOnce> queue = std::make_shared<AtOnce>();
  std::atomic<bool> lost = false, given_up = false;
};

/// The first of two ranks, from whose memory the other one's part, of sevens, is gathered.
struct Gathers final : Transport {
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void run(const Operation& op) override {
    if (op.collective != Collective::all_gather) return;
    room = malloc_usable_size(op.out);
    if (room < op.bytes_out(2)) return;
    std::fill_n(static_cast<float*>(op.out) + op.count, op.count, 7.0F);
  }
  std::string carrier() const override { return "the host"; }
  std::shared_ptr<Transport> group(const std::vector<int>&) override { return nullptr; }
  std::size_t room = 0;  ///< bytes
};

}  // namespace

TEST_CASE("parts of a device's memory are gathered in place by way of the host") {
  const auto transport = std::make_shared<Gathers>();
  const Communicator comm(transport, std::make_shared<CommQueue>(transport));
  Stream s;
  HostMemory memory;
  std::vector<float> data(20000, 1.0F);
  const auto view = [&](std::int64_t size) {
    return View(data.data(), {{size, 1, 1, 1}, DType::f32, {}}, &memory);
  };
  comm.all_gather(s, Pass::update, view(10000), view(20000)).wait(s);  // the first one of its queue
  CHECK(transport->room >= 20000 * sizeof(float));
  CHECK((data[9999] == 1 && data[10000] == 7 && data[19999] == 7));
}

TEST_CASE("what a device puts into streams allocates nothing, and has the stream wait") {
  const auto transport = std::make_shared<OnDevice>();
  const auto queue = std::make_shared<CommQueue>(transport);
  const Communicator comm(transport, queue);
  const auto compute = std::make_shared<AtOnce>();
  Stream s;
  s.put_into(compute);
  HostMemory memory;
  float data[16] = {};
  const View x(data, {{16, 1, 1, 1}, DType::f32, {}}, &memory);
  comm.barrier();
  const test::Allocations allocations;
  for (int i = 0; i < 5000; ++i) {
    Pending first = comm.all_reduce(s, Pass::forward, x);
    Pending second = comm.broadcast(s, Pass::forward, x, 0);
    second.wait(s);
    first.wait(s);
  }
  const std::size_t count = allocations.count();
  if (test::counts_allocations()) CHECK(count == 0);
  CHECK(transport->queue->marks == 10000);
  CHECK(compute->follows == 10000);
  CHECK(compute->works + compute->waits + transport->queue->waits == 0);
}

TEST_CASE("a Pending that goes waits until what a device runs is done, a recorder for its span") {
  struct Counts final : Recorder {
    void record(const Span& s) override { moved += s.lane == Lane::communication; }
    std::atomic<int> moved = 0;
  };
  const auto transport = std::make_shared<OnDevice>();
  const Communicator comm(transport, std::make_shared<CommQueue>(transport));
  Stream s;
  s.put_into(std::make_shared<AtOnce>());
  HostMemory memory;
  float data[16] = {};
  const View x(data, {{16, 1, 1, 1}, DType::f32, {}}, &memory);
  for (int i = 0; i < 200; ++i) {
    Counts counts;
    s.record_to(&counts);
    { const Pending dropped = comm.all_reduce(s, Pass::forward, x); }
    counts.await_all();
    CHECK(counts.moved == 1);
    s.record_to(nullptr);
  }
  const int waits = transport->queue->waits;
  {
    Pending pending = comm.all_reduce(s, Pass::forward, x);
    transport->lost = true;
    while (!transport->given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_THROWS_WITH(pending.wait(s), "lost");
  }
  CHECK(transport->queue->waits == waits + 1);  // buffers may go from here on
}

TEST_CASE("a peer that is lost ends what a device has put into streams, and what comes next") {
  const auto transport = std::make_shared<OnDevice>();
  const auto queue = std::make_shared<CommQueue>(transport);
  const Communicator comm(transport, queue);
  Stream s;
  HostMemory memory;
  float data[16] = {};
  const View x(data, {{16, 1, 1, 1}, DType::f32, {}}, &memory);
  Pending pending = comm.all_reduce(s, Pass::forward, x);
  transport->lost = true;
  while (!transport->given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_THROWS_WITH(pending.wait(s), "lost");
  CHECK_THROWS_WITH(comm.all_reduce(s, Pass::forward, x).wait(s), "lost");
  CHECK_THROWS_WITH(comm.barrier(), "lost");
}
