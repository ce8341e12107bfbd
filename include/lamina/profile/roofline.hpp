// Roofline: what a row of a profile could have taken at least on this machine, and what held it up
// (Williams, Waterman and Patterson, 2009).
#pragma once

#include <lamina/profile/profile.hpp>

#include <span>
#include <string>
#include <string_view>

namespace lamina {

/// `kernel`: neither roof, as the kernel is far below both.
enum class Bound { compute, memory, communication, overhead, kernel };
inline constexpr int bound_count = 5;

constexpr std::string_view name(Bound b) {
  constexpr std::string_view names[] = {"compute", "memory", "communication", "overhead", "kernel"};
  return names[int(b)];
}

/// A row, or the sum of several, against the ceilings.
struct Roof {
  double seconds = 0;   ///< max(FLOP/peak, bytes/bandwidth): no kernel can be faster
  double flops = 0;     ///< the roof at this intensity: min(peak, intensity * bandwidth), FLOP/s
  double fraction = 0;  ///< seconds / time in kernels; above 1 = above the roof
  double wasted = 0;    ///< s: time in kernels beyond `seconds`, if any, and all waiting
  /// The largest of FLOP/peak, bytes/bandwidth, waiting, launches, and what kernels take beyond
  /// all but waiting.
  Bound bound = Bound::overhead;
  bool above = false;  ///< time in kernels is more than 5 % below `seconds`
  std::string reason;  ///< where above: why that may be, empty where nothing explains it
};

/// Whether roofs can be told: FMA in the profile's type and memory have been measured.
bool has_ceilings(const Profile& profile);

/// A row without work has no roof; all of its time is overhead. What explains a row above it:
/// - FLOP/s above the peak: Winograd, whose FLOPs are counted as those of a direct convolution.
/// - bytes/s above the bandwidth of memory (or of a cache): in that time, memory can have moved
///   `time * bandwidth` at most. The rest fits into the next cache and the row is no faster than
///   that one, so the rest can have come from it, or stayed in it for the next layer.
/// - either, with several ranks: the row keeps below what a rank gets while the others are idle.
/// Throws Error if the profile has no ceilings.
Roof roof(const Profile& profile, const ProfileRow& row);

/// Of a layer or a group: times and what is wasted add up, the fraction and the bound are those of
/// the sums; above if any row is, and unexplained if any of these is.
Roof roof(const Profile& profile, std::span<const ProfileRow* const> rows);

}  // namespace lamina
