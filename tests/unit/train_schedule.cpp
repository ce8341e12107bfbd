// Schedules against closed forms, and their spelling on the command line.
#include "catch.hpp"

#include <lamina/train/schedule.hpp>

using namespace lamina;

namespace {

/// Rate 1, 10 steps an epoch, 100 steps.
double at(std::string_view spelling, std::int64_t step, double warmup = 0) {
  Schedule s = parse_schedule(spelling);
  s.warmup = warmup;
  return s.at(1, step, 10, 100);
}

}  // namespace

TEST_CASE("schedules follow their formulas") {
  CHECK(at("constant", 99) == 1);
  CHECK(at("step:3,0.5", 29) == 1);
  CHECK(at("step:3,0.5", 30) == 0.5);
  CHECK(at("step:3,0.5", 60) == 0.25);
  CHECK(at("multistep:2,5,0.1", 19) == 1);
  CHECK(at("multistep:2,5,0.1", 20) == Approx(0.1));
  CHECK(at("multistep:2,5,0.1", 50) == Approx(0.01));
  CHECK(at("poly:2", 0) == 1);
  CHECK(at("poly:2", 50) == Approx(0.25));
  CHECK(at("poly", 75) == Approx(0.25));
  CHECK(at("cosine", 0) == 1);
  CHECK(at("cosine", 50) == Approx(0.5));
  CHECK(at("cosine", 100) == Approx(0).margin(1e-12));
}

TEST_CASE("warm-up is linear and the schedule starts after it") {
  for (const auto* s : {"constant", "step:30,0.1", "multistep:30,0.1", "poly:1", "cosine"}) {
    CAPTURE(s);
    CHECK(at(s, 0, 2) == Approx(0.05));
    CHECK(at(s, 9, 2) == Approx(0.5));
    CHECK(at(s, 19, 2) == Approx(1));
    CHECK(at(s, 20, 2) == Approx(1));
  }
  CHECK(at("poly:1", 60, 2) == Approx(0.5));
  CHECK(at("cosine", 60, 2) == Approx(0.5));
}

TEST_CASE("a schedule that is not understood lists what is") {
  for (const auto* s : {"", "linear", "step:a", "step:1,2,3", "step:0", "multistep:1", "poly:1,2",
                        "cosine:1", "step:1;2"})
    CHECK_THROWS_WITH(parse_schedule(s), ContainsSubstring("expected constant, step:EPOCHS"));
}
