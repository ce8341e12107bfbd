// Validation: what plans were predicted to take, beside what they took, as data and tables.
#pragma once

#include <lamina/plan/plan.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// Seconds of a step that were predicted and that were measured of a layer.
struct Compared {
  std::string layer = {};
  std::string kind = {};  ///< of kernels, the layer's type; of waiting, what for
  double predicted = 0, measured = 0;
};

/// A plan that ran for real.
struct ValidatedPlan {
  std::string name = {};               ///< a built-in one, "auto", or "mixed 1" ...
  std::vector<Split> splits = {};      ///< of each vertex
  double formulas = 0;                 ///< predicted seconds of a step, by FormulaTimes
  double calibrated = 0;               ///< by MeasuredTimes
  std::vector<double> rounds = {};     ///< seconds of a step in each round, of the slowest rank
  double measured = 0;                 ///< their median
  std::vector<Compared> kernels = {};  ///< of each layer
  std::vector<Compared> waiting = {};  ///< of each layer, for each kind of communication
};

struct Validation {
  std::string model = {}, cluster = {};
  int ranks = 1, nodes = 1;
  std::int64_t batch = 1;                 ///< samples of a step
  std::vector<ValidatedPlan> plans = {};  ///< that ran

  const ValidatedPlan* plan(std::string_view name) const;  ///< null where there is none
  /// Mean of |predicted / measured - 1| of the steps.
  double error(double ValidatedPlan::*predicted) const;
  /// Of predicted and measured steps.
  double rank_correlation(double ValidatedPlan::*predicted) const;
  /// The plan that is taken where the three best by `calibrated` and `data` are timed in all rounds
  /// but the last; null without plans.
  const ValidatedPlan* chosen() const;
  /// The plan that was fastest in truth; null without plans.
  const ValidatedPlan* fastest() const;
  /// Sums over all plans and layers, by kind.
  std::vector<Compared> kernels() const;
  std::vector<Compared> waiting() const;
};

/// A row for each plan, the fastest first, with its rounds where the width holds them; then types
/// of layers, and communication; then how right it all is.
std::string validation_table(const Validation& validation, const PlanTableOptions& options = {});

inline constexpr const char* validation_schema = "lamina-validation";
inline constexpr int validation_schema_version = 1;

/// All of it, in seconds; docs/planning.md describes it. Throws Error naming `path`.
void write_validation_json(const std::string& path, const Validation& validation);

}  // namespace lamina
