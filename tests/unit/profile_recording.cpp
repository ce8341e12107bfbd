// The profiler: what it keeps of the spans, and at what price.
#include "catch.hpp"
#include "support/allocations.hpp"

#include <lamina/base/error.hpp>
#include <lamina/profile/profiler.hpp>

#include <string>
#include <thread>

using namespace lamina;

namespace {

Span kernel(int layer, Pass pass, const char* what, double begin, double end) {
  return {layer, pass, Lane::compute, what, begin, end, 0};
}

double seconds(const Profiler& p, int layer, Pass pass, Lane lane = Lane::compute) {
  return p.cell(layer, pass).seconds[std::size_t(lane)];
}

}  // namespace

TEST_CASE("spans of one layer and pass add up, over kernels and steps") {
  Profiler p;
  for (int step = 1; step <= 3; ++step) {
    p.begin_step();
    p.record(kernel(1, Pass::forward, "statistics", 10, 10 + step));
    p.record(kernel(1, Pass::forward, "normalize", 20, 22));
    p.record(kernel(1, Pass::input_grad, "normalize", 30, 30.5));
    p.record(kernel(-1, Pass::update, "clip", 40, 41));
    p.end_step();
  }
  CHECK(p.steps() == 3);
  CHECK(seconds(p, 1, Pass::forward) == Approx(1 + 2 + 3 + 3 * 2));
  CHECK(seconds(p, 1, Pass::input_grad) == Approx(1.5));
  CHECK(seconds(p, -1, Pass::update) == Approx(3));
  CHECK(seconds(p, 0, Pass::update) == 0);
  CHECK(seconds(p, 99, Pass::forward) == 0);
  const auto& cell = p.cell(1, Pass::forward);
  CHECK(cell.steps == std::vector<double>{3, 4, 5});
  REQUIRE(cell.kernels.size() == 2);
  CHECK(cell.kernels[0].what == std::string("statistics"));
  CHECK(cell.kernels[0].seconds == Approx(6));
  CHECK(cell.kernels[1].calls == 3);
}

TEST_CASE("equal names are one kernel, wherever their letters lie") {
  Profiler p;
  const std::string here = "conv", there = "conv";
  p.begin_step();
  p.record(kernel(1, Pass::forward, here.c_str(), 0, 1));
  p.record(kernel(1, Pass::forward, there.c_str(), 1, 2));
  p.record({1, Pass::forward, Lane::wait, here.c_str(), 2, 3, 0});
  p.end_step();
  REQUIRE(p.cell(1, Pass::forward).kernels.size() == 2);
  CHECK(p.cell(1, Pass::forward).kernels[0].calls == 2);
  CHECK(p.cell(1, Pass::forward).kernels[1].lane == Lane::wait);
}

TEST_CASE("a span within another one counts in its own place only") {
  Profiler p;
  p.begin_step();
  p.record(kernel(2, Pass::forward, "reorder", 1, 3));  // a span is recorded when it ends
  p.record({2, Pass::weight_grad, Lane::wait, "all_reduce", 5, 6, 0});
  p.record(kernel(1, Pass::forward, "conv", 0, 10));
  p.record(kernel(1, Pass::forward, "conv", 10, 11));  // touches, lies not within
  p.record({2, Pass::weight_grad, Lane::communication, "all_reduce", 0, 9, 64});
  p.end_step();
  CHECK(seconds(p, 1, Pass::forward) == Approx(10 - 2 - 1 + 1));
  CHECK(seconds(p, 2, Pass::forward) == Approx(2));
  CHECK(seconds(p, 2, Pass::weight_grad, Lane::wait) == Approx(1));
  CHECK(seconds(p, 2, Pass::weight_grad, Lane::communication) == Approx(9));
  CHECK(p.cell(2, Pass::weight_grad).bytes == 64);
  CHECK(p.cell(1, Pass::forward).steps[0] == Approx(8));
}

TEST_CASE("time that two spans share is counted once") {
  Profiler p;
  p.begin_step();
  p.record(kernel(2, Pass::forward, "inner", 0, 2));  // begins with the outer one
  p.record({1, Pass::forward, Lane::compute, "outer", 0, 5, 16});
  p.record(kernel(3, Pass::forward, "late", 4, 9));  // of another thread: ends after it
  p.end_step();
  CHECK(seconds(p, 1, Pass::forward) == Approx(2));
  CHECK(seconds(p, 2, Pass::forward) == Approx(2));
  CHECK(seconds(p, 3, Pass::forward) == Approx(5));
  CHECK(p.cell(1, Pass::forward).bytes == 16);
  CHECK(p.cell(1, Pass::forward).kernels[0].calls == 1);
}

TEST_CASE("a step that is begun anew leaves nothing to the next one, however much it had") {
  Profiler p(2, 1);  // room for two spans
  for (const int layer : {1, 2}) {
    p.begin_step();
    for (int i = 0; i < 5; ++i) p.record(kernel(layer, Pass::forward, "relu", i, i + 1));
  }
  p.end_step();
  CHECK(seconds(p, 1, Pass::forward) == 0);
  CHECK(seconds(p, 2, Pass::forward) == Approx(5));
}

TEST_CASE("only what runs within a step is kept") {
  Profiler p;
  const auto record = [&] { p.record(kernel(0, Pass::forward, "relu", 1, 2)); };
  record();
  p.begin_step();
  record();
  p.begin_step();  // the one before was given up
  record();
  p.end_step();
  record();
  CHECK_THROWS_AS(p.end_step(), Error);
  CHECK(p.steps() == 1);
  CHECK(seconds(p, 0, Pass::forward) == 1);
  REQUIRE(p.last_step().size() == 1);
  CHECK(p.last_step()[0].what == std::string("relu"));
}

TEST_CASE("a step is timed from begin to end") {
  Profiler p;
  const double before = now();
  p.begin_step();
  const double between = now();
  while (now() < between + 1e-3) {
  }
  p.end_step();
  CHECK(p.seconds()[0] >= 1e-3);
  CHECK(p.seconds()[0] <= now() - before);
}

TEST_CASE("a profiler that is too small grows, and loses nothing") {
  Profiler p(2, 1);
  for (int step = 0; step < 3; ++step) {
    p.begin_step();
    for (int i = 0; i < 100; ++i) p.record(kernel(i, Pass::forward, "x", i, i + 1));
    p.end_step();
    REQUIRE(p.last_step().size() == 100);
    for (int i = 0; i < 100; ++i) CHECK(p.last_step()[std::size_t(i)].layer == i);
  }
  for (int i = 0; i < 100; ++i) CHECK(seconds(p, i, Pass::forward) == 3);
}

TEST_CASE("a step that is recorded asks for no memory") {
  Profiler p(64, 16);
  const auto step = [&] {
    p.begin_step();
    for (int i = 0; i < 50; ++i) p.record(kernel(i, Pass::forward, i % 2 ? "a" : "b", i, i + 2));
    p.end_step();
  };
  step();
  const test::Allocations allocations;
  for (int i = 0; i < 10; ++i) step();
  CHECK(allocations.count() == 0);
}

TEST_CASE("two threads record at once, also while it grows and steps end") {
  Profiler p(16);
  std::atomic<bool> stop{false};
  constexpr int mine = 200, theirs = 300, steps = 20;
  std::thread passer_by([&] {  // of whose spans some fall between the steps
    while (!stop) p.record({7, Pass::update, Lane::communication, "stray", 0, 1, 1});
  });
  for (int step = 0; step < steps; ++step) {
    p.begin_step();
    std::thread other([&] {
      for (int i = 0; i < theirs; ++i)
        p.record({5, Pass::weight_grad, Lane::communication, "all_reduce", 0, 1, 8});
    });
    for (int i = 0; i < mine; ++i) p.record(kernel(5, Pass::forward, "conv", i, i + 1));
    other.join();
    p.end_step();
  }
  stop = true;
  passer_by.join();
  CHECK(seconds(p, 5, Pass::forward) == mine * steps);
  CHECK(seconds(p, 5, Pass::weight_grad, Lane::communication) == theirs * steps);
  CHECK(p.cell(5, Pass::weight_grad).bytes == 8.0 * theirs * steps);
}
