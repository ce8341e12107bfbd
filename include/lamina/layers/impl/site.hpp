// The groups of ranks that a split takes.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/site.hpp>

namespace lamina {

LAMINA_INLINE Site::Site(const Backend& backend, const Split& split, Communicator ranks,
                         bool training, const Precision& precision, bool fuse, bool plain_weights)
    : backend_(&backend),
      split_(split),
      ranks_(std::move(ranks)),
      training_(training),
      fuse_(fuse),
      plain_weights_(plain_weights),
      precision_(precision) {
  check(split_.ways() <= ranks_.size(), "split ", split_, " has ", split_.ways(),
        " parts, but there ", ranks_.size() == 1 ? "is " : "are ", ranks_.size(),
        ranks_.size() == 1 ? " rank" : " ranks");
  if (active()) place_ = split_.place(ranks_.rank());
  const int cut = int(split_.axes());
  for (int set = cut; set > 0; set = (set - 1) & cut) {
    const Axis axes = Axis(set);
    const bool everybody = set == cut && split_.ways() == ranks_.size();
    groups_.push_back(
        {axes, everybody ? ranks_ : ranks_.group(active() ? members(axes) : std::vector<int>())});
  }
}

LAMINA_INLINE Communicator Site::along(Axis axes) const {
  const Axis cut = axes & split_.axes();
  for (const auto& [set, group] : groups_)
    if (set == cut) return group;
  return {};
}

}  // namespace lamina
