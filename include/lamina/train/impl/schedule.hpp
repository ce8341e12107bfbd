// Schedules of the learning rate, and how they are written.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/train/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

namespace lamina {

namespace detail::schedules {

/// Times the base rate, after `position` epochs, where so much is `done` of what follows warm-up.
inline double of_kind(const Schedule& s, double position, double done) {
  switch (s.kind) {
    case Schedule::Kind::constant:
      return 1;
    case Schedule::Kind::step:  // rounding makes 0.3 / 0.1 a little less than 3
      return std::pow(s.gamma, std::floor(position / s.every * (1 + 1e-12)));
    case Schedule::Kind::multi_step:
      return std::pow(s.gamma, double(std::count_if(s.milestones.begin(), s.milestones.end(),
                                                    [&](double m) { return position >= m; })));
    case Schedule::Kind::polynomial:
      return std::pow(1 - done, s.power);
    case Schedule::Kind::cosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return 1;
}

}  // namespace detail::schedules

LAMINA_INLINE double Schedule::at(double rate, std::int64_t step, std::int64_t per_epoch,
                                  std::int64_t total) const {
  const double epoch = double(std::max<std::int64_t>(per_epoch, 1));
  const double position = double(step) / epoch;
  // The steps that begin within it. Rounding makes 0.1 epochs of 30 steps a little more than 3.
  const double warm = std::ceil(std::max(warmup, 0.0) * double(per_epoch) * (1 - 1e-12));
  if (double(step) < warm) return rate * double(step + 1) / warm;
  const double rest = std::max(1.0, double(total) - warm);
  const double done = std::min(1.0, (double(step) - warm) / rest);
  const double f = factor ? factor(position, double(total) / epoch)
                          : detail::schedules::of_kind(*this, position, done);
  check(std::isfinite(f) && f >= 0, "the schedule's factor at epoch ", position, " is ", f,
        ": expected a number that is not negative");
  return rate * f;
}

LAMINA_INLINE Schedule parse_schedule(std::string_view s) {
  const auto colon = s.find(':');
  const std::string_view kind = s.substr(0, colon);
  std::vector<double> numbers;
  std::string rest(colon == s.npos ? "" : s.substr(colon + 1));
  const auto fail = [&] {
    throw Error(text("schedule '", s,
                     "' is not understood: expected constant, step:EPOCHS,FACTOR, ",
                     "multistep:EPOCH,...,FACTOR, poly:POWER or cosine"));
  };
  for (std::size_t at = 0; at < rest.size();) {
    std::size_t used = 0;
    try {
      numbers.push_back(std::stod(rest.substr(at), &used));
    } catch (const std::exception&) {
      fail();
    }
    at += used;
    if (at < rest.size() && (rest[at++] != ',' || at == rest.size())) fail();
  }
  const auto check_factor = [&](double factor) {
    check(factor >= 0 && factor <= 1, "schedule '", s, "': expected a FACTOR from 0 to 1",
          kind == "multistep" ? " behind the epochs" : "", ", got ", factor);
  };
  for (const double number : numbers)
    if (!std::isfinite(number) || number < 0) fail();
  Schedule to;
  if (kind == "constant" && numbers.empty()) return to;
  if (kind == "cosine" && numbers.empty()) return to.kind = Schedule::Kind::cosine, to;
  if (kind == "poly" && numbers.size() <= 1) {
    to.kind = Schedule::Kind::polynomial;
    if (!numbers.empty()) to.power = numbers[0];
    return to;
  }
  if (kind == "step" && numbers.size() <= 2) {
    to.kind = Schedule::Kind::step;
    if (!numbers.empty()) to.every = numbers[0];
    if (numbers.size() == 2) check_factor(to.gamma = numbers[1]);
    if (to.every <= 0) fail();
    return to;
  }
  if (kind == "multistep" && numbers.size() >= 2) {
    to.kind = Schedule::Kind::multi_step;
    check_factor(to.gamma = numbers.back()), numbers.pop_back();
    to.milestones = std::move(numbers);
    return to;
  }
  fail();
  return to;
}

}  // namespace lamina
