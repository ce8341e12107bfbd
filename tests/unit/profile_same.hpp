// Whether two profiles are the same, member by member. Who adds a member must add it here, or this
// does not compile, and then see that files keep it.
#pragma once

#include <lamina/profile/profile.hpp>

#include <tuple>

namespace lamina {

#define LAMINA_MEMBERS(type, ...)       \
  inline auto members(const type& of) { \
    const auto& [__VA_ARGS__] = of;     \
    return std::tie(__VA_ARGS__);       \
  }                                     \
  inline bool operator==(const type& a, const type& b) { return members(a) == members(b); }

LAMINA_MEMBERS(Spread, a, b, c, d)
LAMINA_MEMBERS(Work, a, b, c)
LAMINA_MEMBERS(Counts, a, b, c, d)
LAMINA_MEMBERS(ProfileKernel, a, b, c, d, e)
LAMINA_MEMBERS(ProfileRow, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x,
               y, z)
LAMINA_MEMBERS(StepSpread, a, b, c, d, e)
LAMINA_MEMBERS(LayerMemory, a, b, c)
LAMINA_MEMBERS(TimelineSpan, a, b, c, d, e, f, g)
LAMINA_MEMBERS(Rate, a, b)
LAMINA_MEMBERS(ComputeCeiling, a, b, c, d, e)
LAMINA_MEMBERS(MemoryCeiling, a, b, c, d, e, f)
LAMINA_MEMBERS(CommCeiling, a, b, c, d, e, f)
LAMINA_MEMBERS(Machine, a, b, c, d, e, f, g, h, i, j, k, l)
LAMINA_MEMBERS(ProcessorUse, a, b, c, d)
LAMINA_MEMBERS(PlanTime, a, b, c)
LAMINA_MEMBERS(PlannedStep, a, b, c)
LAMINA_MEMBERS(RanksChange, a, b, c, d, e, f, g, h)
LAMINA_MEMBERS(RanksOverTime, a, b)
LAMINA_MEMBERS(Profile, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y,
               z, arithmetic)

#undef LAMINA_MEMBERS

namespace test {

/// Members that are what they are by default, counted from 0; -1 = there are none.
template <class T>
int first_default(const T& value) {
  const T empty{};
  int at = 0, found = -1;
  std::apply(
      [&](const auto&... mine) {
        std::apply(
            [&](const auto&... theirs) {
              ((found = found < 0 && mine == theirs ? at : found, ++at), ...);
            },
            members(empty));
      },
      members(value));
  return found;
}

}  // namespace test
}  // namespace lamina
