// The ranks that share a collective.
#include <lamina/cost/group.hpp>

namespace lamina {

std::vector<int> group(const Split& split, const Place& place, Axis axes) {
  const Axis cut = axes & split.axes(), others = Axis(int(split.axes()) & ~int(cut));
  std::vector<int> ranks(std::size_t(split.ways(cut)));
  for (int r = 0; r < split.ways(); ++r)
    if (const Place p = split.place(r); split.number(p, others) == split.number(place, others))
      ranks[std::size_t(split.number(p, cut))] = r;
  return ranks;
}

}  // namespace lamina
