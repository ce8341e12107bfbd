// Schedules against closed forms, and their spelling on the command line.
#include "catch.hpp"

#include <lamina/train/schedule.hpp>

#include <cmath>

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

TEST_CASE("a step of part of an epoch drops at the step with which that part ends") {
  for (const std::int64_t per_epoch : {1, 3, 7, 10, 30, 1251})
    for (std::int64_t every = 1; every < 40; ++every) {
      CAPTURE(per_epoch, every);
      const Schedule s{
          .kind = Schedule::Kind::step, .every = double(every) / double(per_epoch), .gamma = 0.5};
      for (std::int64_t i = 0; i < 20 * every; ++i)
        if (s.at(1, i, per_epoch, 1) != std::pow(0.5, i / every)) FAIL_CHECK("at step " << i);
    }
  for (int i = 0; i < 100; ++i) CHECK(at("step:0.1,0.5", i) == std::pow(0.5, i));
  for (int i = 0; i < 100; ++i) CHECK(at("step:0.7,0.5", i) == std::pow(0.5, i / 7));
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

TEST_CASE("warm-up over part of an epoch, or of a step, is linear over the steps it has") {
  const auto rate = [](double epochs, std::int64_t step, std::int64_t per_epoch) {
    return Schedule{.warmup = epochs}.at(0.02, step, per_epoch, 10 * per_epoch);
  };
  // Half of 15 steps: the eighth begins within it, the ninth does not.
  for (int i = 0; i < 8; ++i) CHECK(rate(0.5, i, 15) == Approx(0.02 * (i + 1) / 8));
  CHECK(rate(0.5, 7, 15) == 0.02);
  CHECK(rate(0.5, 8, 15) == 0.02);
  CHECK(rate(0.02, 0, 15) == 0.02);  // a third of a step
  CHECK(rate(1e-9, 0, 15) == 0.02);
  for (int i = 0; i < 5; ++i) CHECK(rate(4.5 / 15, i, 15) == Approx(0.02 * (i + 1) / 5));
  for (int i = 0; i < 3; ++i)  // just 3 steps, although 0.1 * 30 > 3 in floating point
    CHECK(rate(0.1, i, 30) == Approx(0.02 * (i + 1) / 3));
  for (const double epochs : {0.0, 0.02, 0.3, 0.5, 1.0, 1.3, 2.0, 2.77})
    for (const std::int64_t per_epoch : {1, 2, 7, 15, 30}) {
      CAPTURE(epochs, per_epoch);
      double last = 0;
      for (std::int64_t i = 0; i < 3 * per_epoch; ++i) {
        const double now = rate(epochs, i, per_epoch);
        CHECK(now >= last);
        CHECK(now <= 0.02);
        last = now;
      }
      CHECK(last == 0.02);
    }
}

TEST_CASE("schedules begin where a warm-up over part of an epoch ends") {
  for (const auto* s : {"poly:1", "cosine"}) {
    CAPTURE(s);
    CHECK(at(s, 4, 0.45) == 1);
    CHECK(at(s, 5, 0.45) == 1);  // 5 of 100 steps are warm-up
    CHECK(at(s, 100, 0.45) == Approx(0).margin(1e-12));
  }
  CHECK(at("poly:1", 24, 0.45) == Approx(1 - 19.0 / 95));
}

TEST_CASE("a schedule that is not understood lists what is") {
  for (const auto* s : {"", "linear", "step:a", "step:1,2,3", "step:0", "multistep:1", "poly:1,2",
                        "step:1,0.1,", "multistep:30,0.1,", "poly:2,", "cosine:1", "step:1;2"})
    CHECK_THROWS_WITH(parse_schedule(s), ContainsSubstring("expected constant, step:EPOCHS"));
  for (const auto* s : {"step:-1,0.1", "multistep:-3,0.1", "poly:-1", "step:nan", "poly:inf"})
    CHECK_THROWS_WITH(parse_schedule(s), ContainsSubstring("expected constant, step:EPOCHS"));
}

TEST_CASE("a schedule never raises the rate, nor makes it negative") {
  CHECK_THROWS_WITH(parse_schedule("multistep:30,60"),
                    "schedule 'multistep:30,60': expected a FACTOR from 0 to 1 behind the epochs, "
                    "got 60");
  CHECK_THROWS_WITH(parse_schedule("step:1,1.5"), ContainsSubstring("expected a FACTOR from 0"));
  CHECK(parse_schedule("multistep:30,60,0").gamma == 0);
  CHECK(parse_schedule("step:1,1").gamma == 1);
  const Schedule up{.kind = Schedule::Kind::step, .every = 1, .gamma = -0.5};
  CHECK(up.at(1, 0, 10, 40) == 1);
  CHECK_THROWS_WITH(up.at(1, 10, 10, 40), ContainsSubstring("factor at epoch 1 is -0.5"));
}

TEST_CASE("a schedule of one's own is asked after the warm-up") {
  Schedule own{.warmup = 1};
  own.factor = [](double position, double total) { return position >= total / 2 ? 0.25 : 1; };
  const auto rate = [&](std::int64_t step) { return own.at(2, step, 10, 40); };
  CHECK(rate(0) == Approx(0.2));
  CHECK(rate(9) == 2);
  CHECK(rate(19) == 2);
  CHECK(rate(20) == 0.5);
  for (const double wrong : {-0.1, std::nan(""), HUGE_VAL}) {
    own.factor = [=](double, double) { return wrong; };
    CHECK_THROWS_WITH(rate(15), ContainsSubstring("factor at epoch 1.5 is "));
    CHECK_NOTHROW(rate(5));
  }
}
