// How two measurements of one machine become one.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/detail/best.hpp>

#include <algorithm>

namespace lamina::detail {

namespace better_of {

inline constexpr double plausible = 1.25;

struct Value {
  double rate = 0;
  bool disturbed = false;
};

inline Value better(Value older, Value newer) {
  const bool newer_leads = newer.rate >= older.rate;
  const Value high = newer_leads ? newer : older, low = newer_leads ? older : newer;
  if (low.disturbed) return high;  // it was held down, and so says nothing about the other
  if (high.rate <= plausible * low.rate) return {high.rate, false};
  return high.disturbed || !newer_leads ? low : high;
}

/// Of `newer`, in place; a ceiling is disturbed where any of its rates is.
class Merge {
 public:
  Merge(bool older, bool& newer) : older_(older), newer_(newer), was_(newer) { newer_ = false; }

  void rate(double older, double& newer) {
    const Value v = better({older, older_}, {newer, was_});
    newer = v.rate, newer_ |= v.disturbed;
  }
  void rate(const Rate& older, Rate& newer) {
    rate(older.alone, newer.alone), rate(older.together, newer.together);
  }
  void seconds(double older, double& newer) {
    double per_second = 1 / newer;
    rate(1 / older, per_second);
    newer = 1 / per_second;
  }

 private:
  bool older_;
  bool& newer_;
  bool was_;
};

/// each(merge, older, newer) for each two of the same ceiling.
template <class Ceiling, class Same, class Each>
void merge(const std::vector<Ceiling>& older, std::vector<Ceiling>& newer, Same same, Each each) {
  for (Ceiling& mine : newer) {
    const auto old =
        std::find_if(older.begin(), older.end(), [&](const Ceiling& c) { return same(c, mine); });
    if (old == older.end()) continue;
    Merge merge(old->disturbed, mine.disturbed);
    each(merge, *old, mine);
  }
}

}  // namespace better_of

LAMINA_INLINE Machine best_of(const Machine& older, const Machine& newer) {
  Machine best = newer;
  best.launch = older.launch > 0 ? std::min(older.launch, newer.launch) : newer.launch;
  better_of::merge(
      older.compute, best.compute,
      [](const ComputeCeiling& a, const ComputeCeiling& b) {
        return a.kind == b.kind && a.name == b.name && a.dtype == b.dtype;
      },
      [](better_of::Merge& m, const ComputeCeiling& a, ComputeCeiling& b) {
        m.rate(a.flops, b.flops);
      });
  better_of::merge(
      older.memory, best.memory,
      [](const MemoryCeiling& a, const MemoryCeiling& b) { return a.level == b.level; },
      [](better_of::Merge& m, const MemoryCeiling& a, MemoryCeiling& b) {
        m.rate(a.triad, b.triad), m.rate(a.read, b.read), m.rate(a.scale, b.scale);
      });
  better_of::merge(
      older.comm, best.comm,
      [](const CommCeiling& a, const CommCeiling& b) {
        return a.op == b.op && a.ranks == b.ranks && a.stride == b.stride && a.bytes == b.bytes;
      },
      [](better_of::Merge& m, const CommCeiling& a, CommCeiling& b) {
        m.seconds(a.seconds, b.seconds);
      });
  return best;
}

}  // namespace lamina::detail
