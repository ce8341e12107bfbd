// What is put into streams of a GPU is recorded as graphs, on the stand-in for CUDA's runtime.
#include "catch.hpp"
#include "cuda/memory.hpp"
#include "fake/runtime.hpp"
#include "support/training.hpp"

#include <lamina/tensor/repeated.hpp>

#include <functional>
#include <string>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Two streams of a GPU and some numbers there.
struct TwoStreams {
  cuda::Memory memory{0};
  Stream stream, other;
  std::shared_ptr<void> room = memory.allocate(4 * sizeof(double));

  TwoStreams() { memory.queue_of(stream), memory.queue_of(other); }

  cuda::Queue& queue(Stream& s) { return memory.queue_of(s); }
  double* at(int i) const { return static_cast<double*>(room.get()) + i; }
  void put(double value) { memory.put(stream, &value, at(0), sizeof value); }
  void carry(Stream& s, int from, int to) { memory.carry(s, at(from), at(to), sizeof(double)); }
  double read(int i) {
    double value = 0;
    memory.get(stream, at(i), &value, sizeof value);
    stream.wait();
    return value;
  }
  std::unique_ptr<Recording> record(const std::function<void()>& work) {
    return queue(stream).record(work);
  }
  std::string error(const std::function<void()>& work) {
    try {
      record(work);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

}  // namespace

TEST_CASE("what two streams were given is recorded and runs again on other numbers") {
  TwoStreams two;
  const auto recording = two.record([&] {
    two.other.follow(two.stream.event());
    two.carry(two.other, 0, 1);
    two.carry(two.stream, 0, 2);
    two.stream.follow(two.other.event());
    two.carry(two.stream, 1, 3);
  });
  CHECK(two.read(3) == 0);
  for (int i = 1; i < 20; ++i) {
    two.put(i);
    recording->play(two.stream);
    REQUIRE(two.read(2) == i);
    REQUIRE(two.read(3) == i);
  }
}

TEST_CASE(
    "a recording in which a stream is not joined, or waited for, is refused; what follows runs") {
  TwoStreams two;
  const auto joins = [&] { two.other.follow(two.stream.event()); };
  CHECK(two.error([&] { joins(), two.carry(two.other, 0, 1); }) ==
        "CUDA: record a graph: capturing stream has unjoined work");
  CHECK(two.error([&] { two.put(1); }) == "it has copies from the host, which cannot be recorded");
  CHECK(two.error([&] { two.stream.then([] {}); }) ==
        "it has work of the host in it, which cannot be recorded");
  CHECK(two.error([&] { two.carry(two.stream, 0, 1), two.stream.wait(); }) ==
        "it has the host wait, which cannot be recorded");
  CHECK(two.error([&] { two.queue(two.stream).scratch(std::size_t(1) << 20); }) ==
        "it has memory allocated, which cannot be recorded");
  // An event from before the recording is nothing that a graph could wait for.
  two.carry(two.other, 0, 1);
  const Event before = two.other.event();
  CHECK(two.error([&] { two.stream.follow(before); }) ==
        "CUDA: have a stream wait for an event: dependency created on uncaptured work in another "
        "stream");
  // And one of a recording is nothing outside of it.
  Event within;
  two.record([&] { two.carry(two.stream, 0, 1), within = two.stream.event(); });
  CHECK_THROWS_WITH(two.other.follow(within), "CUDA: a stream waits for a part of a recording");
  CHECK_THROWS_WITH(within.wait(), "CUDA: the host cannot wait for a part of a recording");
  two.put(7);
  two.carry(two.stream, 0, 1);
  CHECK(two.read(1) == 7);
}

TEST_CASE("scratch memory that grows leaves a recording what it writes to") {
  TwoStreams two;
  cuda::Queue& queue = two.queue(two.stream);
  void* const scratch = queue.scratch(64);
  const auto recording = two.record([&] {
    two.memory.carry(two.stream, two.at(0), queue.scratch(64), sizeof(double));
    two.memory.carry(two.stream, queue.scratch(64), two.at(1), sizeof(double));
  });
  CHECK(queue.scratch(std::size_t(1) << 12) != scratch);
  CHECK(queue.why_only_once() == std::string("memory allocated"));
  two.stream.wait();
  const auto others = two.memory.allocate(64);
  two.put(5);
  recording->play(two.stream);
  CHECK(two.read(1) == 5);
  double left = 0;
  two.memory.copy(scratch, &left, sizeof left);
  CHECK(left == 5);
}

TEST_CASE("a recorded step allocates nothing, and the host waits for its loss alone") {
  const auto data = small_data(48);
  Trainer trainer(small_network(true), World(), SGD{.rate = 0.05, .momentum = 0.9},
                  {.batch = 12, .micro_batch = 6, .backend = "reference"});
  auto loader = trainer.loader(*data, true);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      trainer.start(loader, 40);
      if (trainer.under_way() > 1) trainer.finish();
    }
  };
  run_ahead(false);
  steps(12);
  CHECK(trainer.graph() == "steps are recorded");
  run_ahead(true);
  const FakeCounts before = fake_counts();
  steps(10);
  const FakeCounts after = fake_counts();
  CHECK(after.allocations == before.allocations);
  CHECK(after.waits - before.waits == 10);
  CHECK(after.launches - before.launches == 20);  // one for each micro-batch
  trainer.finish();
}
