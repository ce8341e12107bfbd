// Groups of some of a group's ranks, which are given out again once nobody uses them: MPI and NCCL
// keep what they make to its end, since to free it is a collective call, and the last reference is
// dropped by whichever thread and whenever.
#pragma once

#include <lamina/comm/detail/gather_values.hpp>
#include <lamina/comm/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lamina::detail {

class GroupPool {
 public:
  /// Makes a group of these members, each of which calls it with the same ones, while the other
  /// ranks call it with none and get null.
  using Make = std::function<std::shared_ptr<Transport>(const std::vector<int>& members)>;

  /// Collective over `whole`, blocking. Each rank names the members of its group, by their ranks in
  /// `whole` and itself among them, as they all do; or none, and gets null. What the members have
  /// and none of them uses is theirs again, as it was; else make() makes it.
  std::shared_ptr<Transport> group(Transport& whole, const std::vector<int>& members,
                                   const Make& make);

 private:
  struct Made {
    std::vector<int> members;
    std::shared_ptr<Transport> group;
  };
  /// By their numbers those groups of these members that this rank does not use.
  std::uint64_t idle(const std::vector<int>& members) const;

  std::vector<Made> made_;  // those of the same members in the same order on all of these
};

inline std::uint64_t GroupPool::idle(const std::vector<int>& members) const {
  std::uint64_t numbers = 0, number = 1;  // none is given out again beyond the 64th
  for (const Made& m : made_) {
    if (m.members != members) continue;
    if (m.group.use_count() == 1) numbers |= number;
    number <<= 1;
  }
  return numbers;
}

inline std::shared_ptr<Transport> GroupPool::group(Transport& whole,
                                                   const std::vector<int>& members,
                                                   const Make& make) {
  struct Said {
    std::int64_t first;  // of the members
    std::uint64_t idle;
  };
  const bool none = members.empty();
  std::vector<Said> all =
      gather_values(whole, Said{none ? -1 : members[0], none ? 1 : idle(members)});
  for (Said& a : all)
    for (const Said& b : all)
      if (a.first == b.first) a.idle &= b.idle;

  const std::uint64_t ours = all[std::size_t(whole.rank())].idle;
  if (std::ranges::any_of(all, [](const Said& a) { return a.idle == 0; })) {
    auto made = make(ours ? std::vector<int>() : members);
    if (!ours) return made_.emplace_back(members, std::move(made)).group;
  }
  if (none) return nullptr;
  int left = std::countr_zero(ours);
  const auto same = std::ranges::find_if(
      made_, [&](const Made& m) { return m.members == members && left-- == 0; });
  return same->group;
}

}  // namespace lamina::detail
