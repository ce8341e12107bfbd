// PlannedStep: what a plan says of a step, for the profile that has what was measured of it.
#pragma once

#include <string>
#include <vector>

namespace lamina {

/// Seconds of a step under a plan that was timed before one was chosen.
struct PlanTime {
  std::string name = {};             ///< "auto", "data", ...
  double predicted = 0, median = 0;  ///< the median is that of the steps that were timed
};

struct PlannedStep {
  std::string cluster = {};          ///< that it was predicted for
  double seconds = 0;                ///< of a step, as predicted
  std::vector<PlanTime> timed = {};  ///< the chosen one first
};

}  // namespace lamina
