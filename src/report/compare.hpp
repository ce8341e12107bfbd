// Compare: two profiles, row by row.
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// A pass of a layer, matched by the layer's name; null where the other profile lacks it.
struct Change {
  const ProfileRow* before = nullptr;
  const ProfileRow* after = nullptr;

  const ProfileRow& any() const { return after ? *after : *before; }
  bool both() const { return before && after; }
  /// Seconds per step, kernels and waiting; negative = less than before.
  double difference() const {
    return (after ? after->seconds() : 0) - (before ? before->seconds() : 0);
  }
  /// Of the time before; 0 if there was none.
  double relative() const {
    return both() && before->seconds() > 0 ? difference() / before->seconds() : 0;
  }
};

/// All rows of both, the largest difference first. Points into the profiles.
std::vector<Change> changes(const Profile& before, const Profile& after);

/// What makes the two hard to compare, a sentence each: another model, batch, ...
std::vector<std::string> unlike(const Profile& before, const Profile& after);

/// For a terminal: the warnings, the step, and the `top` largest differences.
std::string comparison(const Profile& before, const Profile& after, int top);

/// Seconds of a step: of one that was not recorded where there are any.
inline double step_seconds(const Profile& p) {
  return p.clean.mean > 0 ? p.clean.mean : p.end_to_end.mean;
}
inline double images_per_second(const Profile& p) {
  return step_seconds(p) > 0 ? double(p.batch) / step_seconds(p) : 0;
}

}  // namespace lamina::detail
