// Lines: rows of a profile that are told together, in the table, on the page, or in words.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/detail/lines.hpp>

#include <algorithm>
#include <unordered_map>

namespace lamina::detail {

namespace grouping {

using Group = TableOptions::Group;

inline std::string group_of(const ProfileRow& r, Group by) {
  if (r.layer < 0 || r.type.empty() || by == Group::layer) return r.name;
  return by == Group::type ? r.type : text(r.output.h, 'x', r.output.w);
}

inline void put_under_roof(Line& line, const Profile& profile) {
  if (has_ceilings(profile)) line.roof = roof(profile, line.rows);
}

inline double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace grouping

LAMINA_INLINE double hidden(double comm, double late, double transfer) {
  return std::max(0.0, comm - late - transfer);
}

LAMINA_INLINE int Line::layers() const {
  std::vector<int> all;
  for (const ProfileRow* r : rows) all.push_back(r->layer);
  std::sort(all.begin(), all.end());
  return int(std::unique(all.begin(), all.end()) - all.begin());
}

LAMINA_INLINE std::string Line::shared(std::string ProfileRow::*words) const {
  int layer = first().layer;
  for (const ProfileRow* r : rows) {
    if (r->layer != layer && r->*words != first().*words) return "";
    layer = r->layer;
  }
  return first().*words;
}

LAMINA_INLINE double Line::hidden() const { return detail::hidden(comm(), late(), transfer()); }

LAMINA_INLINE double Line::slowdown() const {
  const double beside = sum([](const ProfileRow& r) { return r.alone.mean > 0 ? r.time.mean : 0; });
  return alone() > 0 ? std::max(1.0, beside / alone()) : 0;
}

LAMINA_INLINE double Line::imbalance() const {
  return grouping::ratio(sum([](const ProfileRow& r) { return r.time.max; }), time());
}

LAMINA_INLINE Work Line::work() const {
  Work w;
  for (const ProfileRow* r : rows) w += r->work;
  return w;
}

LAMINA_INLINE double Line::counted(double Counts::*of) const {
  double sum = 0;
  for (const ProfileRow* r : rows) {
    if (!r->counts) continue;
    if ((*r->counts).*of < 0) return 0;
    sum += (*r->counts).*of;
  }
  return sum;
}

LAMINA_INLINE std::vector<Line> lines_of(const Profile& profile, grouping::Group by,
                                         bool per_pass) {
  std::vector<Line> lines;
  std::unordered_map<std::string, std::size_t> places;
  for (const ProfileRow& r : profile.rows) {
    const std::string name = grouping::group_of(r, by);
    const std::string key = text(by == grouping::Group::layer ? r.layer : 0, ' ',
                                 per_pass ? int(r.pass) : 0, ' ', name);
    const auto [place, fresh] = places.emplace(key, lines.size());
    if (fresh) lines.push_back({name, {}});
    lines[place->second].rows.push_back(&r);
  }
  for (Line& line : lines) grouping::put_under_roof(line, profile);
  return lines;
}

LAMINA_INLINE Line sum_of(const Profile& profile, std::string name,
                          const std::vector<Line>& others) {
  Line all{std::move(name), {}};
  for (const Line& l : others) all.rows.insert(all.rows.end(), l.rows.begin(), l.rows.end());
  grouping::put_under_roof(all, profile);
  return all;
}

LAMINA_INLINE bool has_unlike_splits(const Profile& profile) {
  const std::string* first = nullptr;
  for (const ProfileRow& r : profile.rows) {
    if (r.split.empty()) continue;
    if (first && r.split != *first) return true;
    first = &r.split;
  }
  return false;
}

LAMINA_INLINE std::vector<Line> largest_first(std::vector<Line> lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.roof.wasted != b.roof.wasted ? a.roof.wasted > b.roof.wasted
                                          : a.seconds() > b.seconds();
  });
  return lines;
}

}  // namespace lamina::detail
