// Roofline: what a row of a profile could have taken at least on this machine, and what held it up
// (Williams, Waterman and Patterson, 2009).
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>
#include <string_view>

namespace lamina {

enum class Bound { compute, memory, communication, overhead };

constexpr std::string_view name(Bound b) {
  constexpr std::string_view names[] = {"compute", "memory", "communication", "overhead"};
  return names[int(b)];
}

/// A row, or the sum of several, against the ceilings.
struct Roof {
  double seconds = 0;   ///< max(FLOP/peak, bytes/bandwidth): no kernel can be faster
  double flops = 0;     ///< the roof at this intensity: min(peak, intensity * bandwidth), FLOP/s
  double fraction = 0;  ///< seconds / time in kernels; above 1 = above the roof
  double wasted = 0;    ///< s: time in kernels and waiting beyond `seconds`; never negative
  Bound bound = Bound::compute;  ///< the largest of FLOP/peak, bytes/bandwidth, waiting, launches
  bool above = false;            ///< above the roof by more than 5 %
  std::string reason;            ///< where above: why that may be, empty where nothing explains it
};

/// Throws Error if the profile has no ceilings.
Roof roof(const Profile& profile, const ProfileRow& row);

}  // namespace lamina
