// Schedule: the learning rate as a function of the position in training.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace lamina {

/// Factors on the base rate; positions are in epochs, fractions included. All kinds start with a
/// linear warm-up over `warmup` epochs (Goyal et al., 2017): of the n steps that begin within them,
/// step i, from 1, has i/n of the base rate, so the last one has all of it.
struct Schedule {
  enum class Kind { constant, step, multi_step, polynomial, cosine };
  Kind kind = Kind::constant;
  double every = 30;                    ///< step: epochs between drops
  std::vector<double> milestones = {};  ///< multi_step: epochs at which the rate drops
  double gamma = 0.1;                   ///< step, multi_step: factor of a drop
  double power = 1;                     ///< polynomial: (1 - position/total)^power
  double warmup = 0;                    ///< epochs
  /// One's own, in place of `kind`: the factor at a position of a training of `total` epochs. All
  /// ranks must have the same.
  std::function<double(double position, double total)> factor = {};

  /// `rate` at step `step` (from 0) of `total` steps with `per_epoch` steps in an epoch.
  /// Throws Error where `factor` gives what is no rate.
  double at(double rate, std::int64_t step, std::int64_t per_epoch, std::int64_t total) const;
};

/// "constant", "step:30,0.1" (epochs, factor), "multistep:30,60,80,0.1" (epochs, then the factor),
/// "poly:2" (power) or "cosine". Throws Error for anything else.
Schedule parse_schedule(std::string_view s);

}  // namespace lamina
