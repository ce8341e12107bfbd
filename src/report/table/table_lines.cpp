// Which rows of a profile become one line of its table, and in which order.
#include "columns.hpp"

#include <algorithm>
#include <numeric>

namespace lamina::detail {

namespace {

using Group = TableOptions::Group;
using Sort = TableOptions::Sort;

/// Work outside of layers belongs to no group, and so do the samples that come in.
std::string group_of(const ProfileRow& r, Group by) {
  if (r.layer < 0 || r.type.empty() || by == Group::layer) return r.name;
  return by == Group::type ? r.type : text(r.output.h, 'x', r.output.w);
}

std::vector<TableLine> in_order(const Profile& p, const TableOptions& o) {
  std::vector<TableLine> lines;
  for (const ProfileRow& r : p.rows) {
    const std::string name = group_of(r, o.group);
    const auto same = [&](const TableLine& l) {
      const ProfileRow& first = *l.rows[0];
      return l.name == name && (!o.wide || first.pass == r.pass) &&
             (o.group != Group::layer || first.layer == r.layer);
    };
    const auto found = std::find_if(lines.rbegin(), lines.rend(), same);
    (found == lines.rend() ? lines.emplace_back(TableLine{name, {}}) : *found).rows.push_back(&r);
  }
  return lines;
}

}  // namespace

int TableLine::layers() const {
  std::vector<int> all;
  for (const ProfileRow* r : rows) all.push_back(r->layer);
  std::sort(all.begin(), all.end());
  return int(std::unique(all.begin(), all.end()) - all.begin());
}

std::string TableLine::shared(std::string ProfileRow::*words) const {
  int layer = rows[0]->layer;
  for (const ProfileRow* r : rows) {
    if (r->layer != layer && r->*words != rows[0]->*words) return "";
    layer = r->layer;
  }
  return rows[0]->*words;
}

std::vector<TableLine> collect(const Profile& p, const TableOptions& o) {
  const bool ceilings = has_ceilings(p);
  check(o.sort != Sort::wasted || ceilings,
        "sort by wasted time: the profile has no ceilings of its machine to compare with");
  std::vector<TableLine> lines = in_order(p, o);
  const auto put_under_roof = [&](TableLine& l) {
    if (ceilings) l.roof = roof(p, l.rows);
  };
  for (TableLine& l : lines) put_under_roof(l);

  std::vector<std::size_t> order(lines.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::size_t i) {
    return o.sort == Sort::wasted ? lines[i].roof.wasted : lines[i].seconds();
  };
  const auto larger = [&](std::size_t a, std::size_t b) { return value(a) > value(b); };
  std::vector<std::size_t> others;
  if (o.top > 0 && order.size() > std::size_t(o.top)) {
    std::stable_sort(order.begin(), order.end(), larger);
    others.assign(order.begin() + o.top, order.end());
    order.resize(std::size_t(o.top));
    std::sort(order.begin(), order.end());
  }
  if (o.sort == Sort::time || o.sort == Sort::wasted)
    std::stable_sort(order.begin(), order.end(), larger);
  if (o.sort == Sort::name)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return lines[a].name < lines[b].name; });

  std::vector<TableLine> chosen;
  for (const std::size_t i : order) chosen.push_back(lines[i]);
  if (!others.empty()) {
    TableLine& rest = chosen.emplace_back(TableLine{text('(', others.size(), " more)"), {}});
    for (const std::size_t i : others)
      rest.rows.insert(rest.rows.end(), lines[i].rows.begin(), lines[i].rows.end());
    put_under_roof(rest);
  }
  return chosen;
}

}  // namespace lamina::detail
