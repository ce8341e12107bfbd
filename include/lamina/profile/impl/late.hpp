// How long ranks waited for one that had not come, and how long while bytes moved.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/detail/late.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace lamina::detail {

LAMINA_INLINE std::vector<ClockOffset> clock_offsets(const Communicator& ranks, double (*clock)(),
                                                     const std::string& name) {
  const auto names = ranks.all_gather_text(name);
  std::vector<ClockOffset> offsets(names.size());
  const auto own = [&](const std::string& other) { return other == name; };
  // Every rank decides alike: the names are the same for all.
  if (std::all_of(names.begin(), names.end(), [&](auto& n) { return n == names[0]; }))
    return offsets;
  constexpr double far = std::numeric_limits<double>::max();
  struct Round {
    double begin, last_end;
  };
  std::vector<double> least(names.size(), -far), most(names.size(), far);
  double last_begin = 0, last_end = 0;
  for (int round = 0; round < 65; ++round) {
    const double begin = clock();
    const auto theirs = ranks.all_gather_value(Round{begin, last_end});
    const double end = clock();
    for (std::size_t r = 0; r < theirs.size(); ++r) {  // everybody begins before anybody ends
      least[r] = std::max(least[r], theirs[r].begin - end);
      if (round > 0) most[r] = std::min(most[r], theirs[r].last_end - last_begin);
    }
    last_begin = begin, last_end = end;
  }
  for (std::size_t r = 0; r < names.size(); ++r)
    if (!own(names[r])) offsets[r] = {(least[r] + most[r]) / 2, (most[r] - least[r]) / 2};
  return offsets;
}

LAMINA_INLINE std::vector<double> all_had_come(
    const std::vector<std::vector<Profiler::Run>>& runs_by_rank, std::size_t me,
    const std::vector<ClockOffset>& offsets) {
  using Key = std::pair<std::uint64_t, int>;                          // group and step
  std::map<Key, std::map<std::int32_t, std::vector<double>>> begins;  // by number in the group
  for (std::size_t r = 0; r < runs_by_rank.size(); ++r)
    for (const Profiler::Run& run : runs_by_rank[r])
      begins[{run.party.group, run.step}][run.party.rank].push_back(run.begin - offsets[r].seconds);
  std::map<Key, std::size_t> met;  // so far, of this rank's
  std::vector<double> times;
  for (const Profiler::Run& run : runs_by_rank[me]) {
    const Party& party = run.party;
    const Key key = {party.group, run.step};
    const auto& ranks = begins[key];
    const std::size_t number = met[key]++, count = ranks.at(party.rank).size();
    const bool all = party.to < 0 && party.from < 0;
    const bool alike = party.group != 0 && std::all_of(ranks.begin(), ranks.end(), [&](auto& r) {
                         return r.second.size() == count;
                       });
    double time = run.begin;
    for (const auto& [rank, begin] : ranks)
      if (alike && (all || rank == party.to || rank == party.from))
        time = std::max(time, begin[number]);
    times.push_back(std::min(time, std::max(run.begin, run.end)));
  }
  return times;
}

}  // namespace lamina::detail
