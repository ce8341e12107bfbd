// Times of what runs in streams of a GPU, on the stand-in for CUDA's runtime.
#include "catch.hpp"
#include "cuda/memory.hpp"
#include "fake/runtime.hpp"
#include "support/training.hpp"

#include <lamina/profile/profiler.hpp>

#include <chrono>
#include <map>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Takes so many seconds in the stream.
void put(cuda::Memory& memory, Stream& stream, const char* what, double seconds) {
  memory.put(stream, Pass::forward, what, [&](cuda::Queue& queue) {
    return queue.stream()->put(
        [=] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  });
}

}  // namespace

TEST_CASE("kernels are timed where they run, and the host waits once for all of them") {
  cuda::Memory memory(0);
  Stream stream;
  Profiler profiler;
  profiler.start(stream);
  FakeCounts warm;
  for (int step = 0; step < 4; ++step) {
    if (step == 2) warm = fake_counts();
    run_ahead(step >= 2);
    if (step > 0) profiler.begin_step();
    const std::int64_t waits = fake_counts().waits;
    const double begin = now();
    for (const auto& [what, seconds] : {std::pair("a", 2e-3), {"b", 5e-3}, {"c", 1e-3}})
      stream.enter(what[0] - 'a'), put(memory, stream, what, seconds);
    CHECK(fake_counts().waits == waits);
    profiler.end_step();
    CHECK(fake_counts().waits == waits + 2);  // for the stream, and for the clock
    const auto spans = profiler.last_step();
    REQUIRE(spans.size() == 3);
    double last = begin;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Span& s = spans[i];
      CHECK(s.layer == std::int32_t(i));
      CHECK(s.what[0] == "abc"[i]);
      const double error = 1e-4;  // of a clock that is read when an event has passed
      CHECK(s.begin > last - error);
      CHECK(s.end - s.begin > (i == 0 ? 2e-3 : i == 1 ? 5e-3 : 1e-3) - 1e-6);
      last = s.end;
    }
    CHECK(last < now());
  }
  CHECK(fake_counts().allocations == warm.allocations);
  profiler.stop();
}

TEST_CASE("what has been waited for is told, though more is under way") {
  cuda::Memory memory(0);
  Stream stream;
  Profiler profiler;
  run_ahead(true);
  for (int step = 0; step < 3; ++step) {
    profiler.begin_step();
    stream.record_to(&profiler);
    put(memory, stream, "a", 2e-3), put(memory, stream, "b", 1e-3);
    const Event end = stream.event();
    stream.record_to(nullptr);
    put(memory, stream, "next", 20e-3);
    stream.record_to(&profiler);  // of a step after that
    put(memory, stream, "c", 1e-3);
    stream.record_to(nullptr);
    end.wait();
    profiler.end_step();
    const auto spans = profiler.last_step();
    REQUIRE(spans.size() == 2);
    CHECK(spans[0].what[0] == 'a');
    CHECK(spans[1].what[0] == 'b');
    CHECK(spans[0].end - spans[0].begin > 2e-3 - 1e-6);
    CHECK(spans[1].end < now() + 1e-4);
    profiler.begin_step();
    stream.wait();
    profiler.end_step();
    REQUIRE(profiler.last_step().size() == 1);
    CHECK(profiler.last_step()[0].what[0] == 'c');
  }
}

TEST_CASE("how long kernels wait for what the host writes and uploads is told") {
  cuda::Memory memory(0);
  memory.least_beside = 0;
  const std::shared_ptr<void> to = memory.allocate(64);
  Stream stream;
  Profiler profiler;
  run_ahead(true);
  profiler.start(stream);
  put(memory, stream, "a", 1e-3);
  stream.run(Pass::forward, "batch", [&] {
    memory.put_filled(stream, to.get(), 64, [&](void* part, std::size_t, std::size_t bytes) {
      stream.event().wait();  // so it has come here before what is written now
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::memset(part, 1, bytes);
    });
    put(memory, stream, "b", 1e-3);
    stream.event().wait();  // within it
    put(memory, stream, "c", 1e-3);
  });
  profiler.end_step();
  const auto spans = profiler.last_step();
  REQUIRE(spans.size() == 4);
  std::map<std::string, Span> by_name;
  for (const Span& span : spans) by_name[span.what] = span;
  const Span& batch = by_name["batch"];
  CHECK(batch.end - batch.begin > 25e-3);
  for (const char* inside : {"b", "c"}) CHECK(by_name[inside].end < batch.end + 1e-6);
  CHECK_THROWS(stream.run(Pass::forward, "wrong", [&] { throw Error("wrong"); }));
  put(memory, stream, "d", 1e-3);
  profiler.begin_step();
  profiler.end_step();
  REQUIRE(profiler.last_step().size() == 1);
  CHECK(profiler.last_step()[0].what[0] == 'd');
  profiler.stop();
}

TEST_CASE("a profiler that goes is told nothing any more") {
  cuda::Memory memory(0);
  Stream stream;
  {
    Profiler profiler;
    profiler.start(stream);
    put(memory, stream, "a", 1e-3);
  }
  const std::int64_t waits = fake_counts().waits;
  stream.wait();
  CHECK(fake_counts().waits <= waits + 1);  // no clock is read for it
}

TEST_CASE("a training step that is recorded waits as often as it has losses and ends") {
  const auto data = small_data(48);
  Trainer trainer(small_network(true), World(), SGD{.rate = 0.05},
                  {.batch = 12, .backend = "reference"});
  auto loader = trainer.loader(*data, true);
  for (int i = 0; i < 3; ++i) trainer.step(loader, 10);
  Profiler profiler;
  profiler.start(trainer.stream());
  for (int i = 0; i < 4; ++i) {
    const std::int64_t waits = fake_counts().waits;
    trainer.step(loader, 10);
    profiler.end_step();
    CHECK(fake_counts().waits - waits == 3);  // for the loss, for the clock, for the end
    std::map<int, int> kernels;
    for (const Span& s : profiler.last_step())
      if (s.lane == Lane::compute) ++kernels[s.layer];
    CHECK(kernels.size() > 8);  // a row for each layer
    if (i < 3) profiler.begin_step();
  }
  profiler.stop();
  trainer.step(loader, 10);
}
