// Compare: two profiles, row by row.
#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace lamina::detail {

std::vector<Change> changes(const Profile& before, const Profile& after) {
  std::vector<Change> all;
  // Names are unique in a network, but a file may say anything: the nth goes with the nth.
  std::map<std::pair<std::string, Pass>, std::vector<std::size_t>> open;
  for (const ProfileRow& row : before.rows) {
    open[{row.name, row.pass}].push_back(all.size());
    all.push_back({&row, nullptr});
  }
  for (const ProfileRow& row : after.rows) {
    const auto same = open.find({row.name, row.pass});
    if (same == open.end() || same->second.empty()) {
      all.push_back({nullptr, &row});
    } else {
      all[same->second.front()].after = &row;
      same->second.erase(same->second.begin());
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Change& a, const Change& b) {
    return std::abs(a.difference()) > std::abs(b.difference());
  });
  return all;
}

std::vector<std::string> unlike(const Profile& before, const Profile& after) {
  std::vector<std::string> all;
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b) all.push_back(text(what, " differs: ", a, " before, ", b, " after"));
  };
  const auto machine = [](const Profile& p) {
    return p.machine ? text(p.machine->cpu, " on ", p.machine->host) : std::string("not measured");
  };
  differ("model", before.model, after.model);
  differ("global batch", text(before.batch), text(after.batch));
  differ("number of ranks", text(before.ranks), text(after.ranks));
  differ("dtype", before.dtype, after.dtype);
  differ("machine", machine(before), machine(after));
  return all;
}

std::string comparison(const Profile& before, const Profile& after, int top) {
  std::string out;
  for (const std::string& warning : unlike(before, after)) append(out, warning + '\n');
  append(out, format("step %.1f us before, %.1f us after", step_seconds(before) * 1e6,
                     step_seconds(after) * 1e6));
  if (step_seconds(after) > 0)
    append(out, format(" (%.3f times as fast in images/s)",
                       images_per_second(before) > 0
                           ? images_per_second(after) / images_per_second(before)
                           : 0));
  const auto all = changes(before, after);
  const std::size_t n = std::min(all.size(), std::size_t(std::max(top, 0)));
  std::size_t width = 5;
  for (std::size_t i = 0; i < n; ++i) width = std::max(width, all[i].any().name.size());
  const int w = int(width);
  append(out, format("\n%-*s %-11s %12s %12s %12s %8s\n", w, "layer", "pass", "before_us",
                     "after_us", "change_us", "change"));
  const auto us = [](const ProfileRow* r) {
    return r ? format("%.1f", r->seconds() * 1e6) : std::string("-");
  };
  for (std::size_t i = 0; i < n; ++i) {
    const Change& c = all[i];
    const std::string change = c.both()  ? format("%+.1f %%", 100 * c.relative())
                               : c.after ? std::string("new")
                                         : std::string("gone");
    append(out, format("%-*s %-11s %12s %12s %+12.1f %8s\n", w, c.any().name.c_str(),
                       std::string(name(c.any().pass)).c_str(), us(c.before).c_str(),
                       us(c.after).c_str(), c.difference() * 1e6, change.c_str()));
  }
  if (n < all.size()) append(out, text('(', all.size() - n, " more)\n"));
  return out;
}

}  // namespace lamina::detail
