// Lines: rows of a profile, or sums of several, with their roofs.
#include "lines.hpp"

#include <algorithm>
#include <unordered_map>

namespace lamina::detail {

namespace {

void add(Spread& to, const Spread& s) {
  if (s.max > to.max) to.slowest = s.slowest;
  to.min += s.min, to.mean += s.mean, to.max += s.max;
}

void add(Line& to, const ProfileRow& row) {
  ProfileRow& sum = to.row;
  sum.work += row.work;
  add(sum.time, row.time), add(sum.comm, row.comm), add(sum.exposed, row.exposed);
  add(sum.alone, row.alone);
  sum.comm_bytes += row.comm_bytes, sum.wire_bytes += row.wire_bytes;
  sum.predicted += row.predicted;
  if (sum.counts && row.counts) *sum.counts += *row.counts;
  if (row.workspace > sum.workspace) sum.workspace = row.workspace;
  if (sum.algorithm.empty()) sum.algorithm = row.algorithm;
  ++to.rows;
}

std::vector<Line> in_order(const Profile& profile) {
  std::vector<Line> lines;
  const bool roofs = has_ceilings(profile);
  for (const ProfileRow& row : profile.rows) {
    Line& line = lines.emplace_back();
    line.row = row;
    line.index = int(lines.size()) - 1;
    if (roofs) line.roof = roof(profile, row);
  }
  return lines;
}

std::vector<Line> largest_first(std::vector<Line> lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.wasted() != b.wasted() ? a.wasted() > b.wasted() : a.row.seconds() > b.row.seconds();
  });
  return lines;
}

}  // namespace

std::vector<Line> rows_of(const Profile& profile) { return largest_first(in_order(profile)); }

std::vector<Line> sums_of(const Profile& profile,
                          const std::function<std::string(const ProfileRow&)>& key) {
  std::vector<Line> sums;
  std::vector<std::vector<const ProfileRow*>> members;
  std::unordered_map<std::string, std::size_t> places;
  for (const ProfileRow& row : profile.rows) {
    const std::string k = key(row);
    if (k.empty()) continue;
    const auto [place, fresh] = places.emplace(k, sums.size());
    if (fresh) {
      sums.emplace_back().row = row;
      members.emplace_back();
    } else {
      add(sums[place->second], row);
    }
    members[place->second].push_back(&row);
  }
  if (has_ceilings(profile))
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].roof = roof(profile, members[i]);
  return largest_first(std::move(sums));
}

std::string by_layer(const ProfileRow& row) { return text(row.layer, ' ', row.name); }
std::string by_type(const ProfileRow& row) { return row.layer < 0 ? outside_layers : row.type; }
std::string by_stage(const ProfileRow& row) {
  if (row.layer < 0) return "";
  return text(row.output.h, 'x', row.output.w);
}

}  // namespace lamina::detail
