// Compare: two profiles, row by row, and what of their difference is more than chance.
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// What a run measured, as a mean over its steps, in seconds.
struct Measured {
  double mean = 0;
  double std = -1;  ///< over the steps; negative = not known
  int steps = 0;
};

/// Of `row`: kernels and waiting.
Measured measured(const Profile& profile, const ProfileRow& row);

/// What became of a time from one run to another.
enum class Verdict {
  none,  ///< no difference that could be told from chance
  less,
  more,
  unknown,  ///< the spread of the steps is not known, or there is one step only
  gone,     ///< in the first run only
  fresh     ///< in the second run only
};

struct Difference {
  Measured before, after;

  double seconds() const { return after.mean - before.mean; }
  /// Of the time before; 0 if there was none.
  double relative() const { return before.mean > 0 ? seconds() / before.mean : 0; }
  bool known() const;
  /// Up to here a difference says nothing: the spread of the steps of both runs, and where there
  /// are few of them, what their means may differ by (Welch's t-test, 1 in 100). Only if known().
  double chance() const;
  Verdict verdict() const;
};

/// A pass of a layer, matched by the layer's name; null where the other profile lacks it.
struct Change {
  const ProfileRow* before = nullptr;
  const ProfileRow* after = nullptr;
  Difference difference = {};  // kernels and waiting, per step

  const ProfileRow& any() const { return after ? *after : *before; }
  bool both() const { return before && after; }
  Verdict verdict() const {
    return !before ? Verdict::fresh : !after ? Verdict::gone : difference.verdict();
  }
};

/// All rows of both: those that changed, the largest difference first, then those that did not.
/// Points into the profiles.
std::vector<Change> changes(const Profile& before, const Profile& after);

/// What stands for the whole step: "step", "kernels", "waiting", ...
struct Total {
  const char* what;
  const char* about;
  Difference difference;
};
/// The wall time of a step, and that of a recorded one with its parts. Without those that neither
/// run has.
std::vector<Total> totals(const Profile& before, const Profile& after);
/// Of the step, and with it of the images per second; nothing where neither run has any.
Difference step_difference(const Profile& before, const Profile& after);
/// What to say of a difference whose verdict is none: "not told from chance (up to 37.5 ms)".
std::string words_of_none(const Difference& difference);

/// "none", "faster", ..., as the tables say it.
const char* words_of(Verdict verdict);

/// What makes the two hard to compare, a sentence each: another model, batch, ...
std::vector<std::string> unlike(const Profile& before, const Profile& after);

/// What makes the times of a run, or the roofs above them, unlike those of a machine of its own.
std::vector<std::string> disturbances(const Profile& profile);

/// For a terminal: the warnings, the step and its parts, and the `top` largest differences.
std::string comparison(const Profile& before, const Profile& after, int top);

/// Seconds of a step: of one that was not recorded where there are any.
inline double step_seconds(const Profile& p) {
  return p.clean.mean > 0 ? p.clean.mean : p.end_to_end.mean;
}
inline double images_per_second(const Profile& p) {
  return step_seconds(p) > 0 ? double(p.batch) / step_seconds(p) : 0;
}

}  // namespace lamina::detail
