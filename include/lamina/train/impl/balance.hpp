// How workers are shared out among unlike ranks.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/train/balance.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE Shares apportion(int workers, std::span<const double> speeds) {
  check(workers >= int(speeds.size()) && !speeds.empty(), "expected a worker for each of ",
        speeds.size(), " ranks, got ", workers);
  for (const double speed : speeds) check(speed > 0, "expected a speed above 0, got ", speed);
  Shares shares(speeds.size(), 1);
  const auto done = [&](std::size_t r) { return (shares[r] + 1) / speeds[r]; };
  for (auto left = workers - int(speeds.size()); left > 0; --left) {
    std::size_t first = 0;
    for (std::size_t r = 1; r < speeds.size(); ++r)
      if (done(r) < done(first)) first = r;
    ++shares[first];
  }
  return shares;
}

namespace detail {

inline double slowest(const Shares& workers, std::span<const double> seconds) {
  double most = 0;
  for (std::size_t r = 0; r < workers.size(); ++r) most = std::max(most, workers[r] * seconds[r]);
  return most;
}

}  // namespace detail

LAMINA_INLINE double imbalance(const Shares& workers, std::span<const double> seconds) {
  double all = 0;
  for (std::size_t r = 0; r < workers.size(); ++r) all += workers[r] * seconds[r];
  return all > 0 ? detail::slowest(workers, seconds) * double(workers.size()) / all : 1;
}

LAMINA_INLINE std::vector<double> Balance::seconds() const {
  std::vector<double> medians;
  for (std::size_t r = 0; !steps_.empty() && r < steps_[0].size(); ++r) {
    std::vector<double> all;
    for (const auto& step : steps_) all.push_back(step[r]);
    std::ranges::nth_element(all, all.begin() + std::ptrdiff_t(all.size() / 2));
    medians.push_back(all[all.size() / 2]);
  }
  return medians;
}

LAMINA_INLINE Shares Balance::due(const Shares& now) {
  if (steps_.size() < window_) return {};
  const std::vector<double> seconds = this->seconds();
  steps_.clear();
  if (std::ranges::any_of(seconds, [](double s) { return s <= 0; })) return {};
  std::vector<double> speeds;
  int workers = 0;
  for (const double s : seconds) speeds.push_back(1 / s);
  for (const int w : now) workers += w;
  Shares better = apportion(workers, speeds);
  const bool gains = detail::slowest(better, seconds) < 0.95 * detail::slowest(now, seconds);
  const bool twice = gains && !asked_.empty();
  if (twice) window_ = std::min(2 * window_, most);
  if (!gains) window_ = std::max(window_ / 2, least);
  asked_ = gains && !twice ? better : Shares();
  return twice ? better : Shares();
}

}  // namespace lamina
