// Compare: two profiles, row by row, and what of their difference is more than chance.
#include "compare.hpp"

#include "report/drawings/svg.hpp"

#include <lamina/profile/roofline.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace lamina::detail {

namespace {

/// |t| that 1 of 100 differences between means of the same exceeds, by degrees of freedom (rounded
/// down to one that stands here).
double critical_t(double freedom) {
  constexpr std::array<std::pair<int, double>, 16> table = {{{1, 63.657},
                                                             {2, 9.925},
                                                             {3, 5.841},
                                                             {4, 4.604},
                                                             {5, 4.032},
                                                             {6, 3.707},
                                                             {7, 3.499},
                                                             {8, 3.355},
                                                             {9, 3.250},
                                                             {10, 3.169},
                                                             {12, 3.055},
                                                             {15, 2.947},
                                                             {20, 2.845},
                                                             {30, 2.750},
                                                             {60, 2.660},
                                                             {120, 2.617}}};
  double t = table[0].second;
  for (const auto& [n, value] : table)
    if (freedom >= n) t = value;
  return t;
}

/// What changed comes before what did not.
bool matters(const Change& c) { return c.verdict() != Verdict::none; }

}  // namespace

Measured measured(const Profile& profile, const ProfileRow& row) {
  // The spread of kernels is all there is to a row that never waits.
  const double std = row.step_total_std >= 0 ? row.step_total_std
                     : row.exposed.max <= 0  ? row.step_std
                                             : -1;
  return {row.seconds(), std, profile.steps};
}

bool Difference::known() const {
  return before.std >= 0 && after.std >= 0 && before.steps > 1 && after.steps > 1;
}

double Difference::chance() const {
  const double a = before.std * before.std, b = after.std * after.std;
  const double of_mean_a = a / before.steps, of_mean_b = b / after.steps;
  const double both = of_mean_a + of_mean_b;
  if (both <= 0) return 0;
  const double freedom =
      both * both /
      (of_mean_a * of_mean_a / (before.steps - 1) + of_mean_b * of_mean_b / (after.steps - 1));
  return std::max(std::sqrt(a + b), critical_t(freedom + 1e-9) * std::sqrt(both));
}

Verdict Difference::verdict() const {
  if (seconds() == 0) return Verdict::none;
  if (!known()) return Verdict::unknown;
  if (std::abs(seconds()) <= chance()) return Verdict::none;
  return seconds() < 0 ? Verdict::less : Verdict::more;
}

const char* words_of(Verdict verdict) {
  constexpr const char* words[] = {"none",      "less",        "more",
                                   "not known", "only before", "only after"};
  return words[int(verdict)];
}

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
  for (Change& c : all) {
    if (c.before) c.difference.before = measured(before, *c.before);
    if (c.after) c.difference.after = measured(after, *c.after);
  }
  std::stable_sort(all.begin(), all.end(), [](const Change& a, const Change& b) {
    if (matters(a) != matters(b)) return matters(a);
    return std::abs(a.difference.seconds()) > std::abs(b.difference.seconds());
  });
  return all;
}

std::vector<Total> totals(const Profile& before, const Profile& after) {
  const auto difference = [&](auto&& mean, double StepSpread::*std) {
    const auto of = [&](const Profile& p) {
      return Measured{mean(p), p.step_spread.*std, p.steps};
    };
    return Difference{of(before), of(after)};
  };
  std::vector<Total> all = {
      {"step", "that was not recorded",
       difference([](const Profile& p) { return p.clean.mean; }, &StepSpread::clean)},
      {"recorded step", "wall time, with layers recorded",
       difference([](const Profile& p) { return p.end_to_end.mean; }, &StepSpread::end_to_end)},
      {"kernels", "of a recorded step",
       difference([](const Profile& p) { return p.compute.mean; }, &StepSpread::kernels)},
      {"waiting", "exposed communication, of a recorded step",
       difference([](const Profile& p) { return p.sum_layers.mean - p.compute.mean; },
                  &StepSpread::waiting)},
      {"unaccounted", "what lies in no row, of a recorded step",
       difference([](const Profile& p) { return p.end_to_end.mean - p.sum_layers.mean; },
                  &StepSpread::unaccounted)}};
  if (before.clean.mean == 0 || after.clean.mean == 0) all.erase(all.begin());
  std::erase_if(all, [](const Total& t) {
    return t.difference.before.mean == 0 && t.difference.after.mean == 0;
  });
  return all;
}

Difference step_difference(const Profile& before, const Profile& after) {
  const auto all = totals(before, after);
  return all.empty() ? Difference() : all[0].difference;
}

std::string words_of_none(const Difference& d) {
  return d.seconds() == 0 ? "no difference"
                          : text("not told from chance (up to ", seconds_text(d.chance()), ')');
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

std::vector<std::string> disturbances(const Profile& p) {
  std::vector<std::string> all;
  const double denied = p.end_to_end.mean > 0 ? p.processor.denied.max / p.end_to_end.mean : 0;
  if (p.disturbed())
    all.push_back(text("rank ", p.processor.denied.slowest,
                       " was ready to run but had no processor for ", percent_text(denied),
                       " of a step, and ", percent_text(std::max(0.0, p.processor.stolen)),
                       " of the machine were given to others, so that times are too long"));
  if (has_ceilings(p) && p.machine->disturbed(p.arithmetic))
    all.push_back(
        "the machine was busy when its ceilings were measured, so that roofs may be too low");
  return all;
}

std::string comparison(const Profile& before, const Profile& after, int top) {
  std::string out;
  for (const std::string& warning : unlike(before, after)) append(out, warning + '\n');
  for (const auto& [which, p] : {std::pair("before", &before), std::pair("after", &after)})
    for (const std::string& s : disturbances(*p))
      append(out, text("DISTURBED ", which, ": ", s, '\n'));
  const Difference step = step_difference(before, after);
  if (images_per_second(before) > 0 && images_per_second(after) > 0)
    append(out,
           format("images/s %.2f before, %.2f after (%.3f times as fast)%s\n",
                  images_per_second(before), images_per_second(after),
                  images_per_second(after) / images_per_second(before),
                  step.verdict() == Verdict::none ? (": " + words_of_none(step)).c_str() : ""));
  const auto sums = totals(before, after);
  const auto all = changes(before, after);
  const std::size_t n = std::min(all.size(), std::size_t(std::max(top, 0)));
  std::size_t width = 13;
  for (std::size_t i = 0; i < n; ++i) width = std::max(width, all[i].any().name.size());
  const int w = int(width);
  const auto line = [&](const char* what, const std::string& pass, const Difference& d,
                        Verdict verdict) {
    const bool both = verdict != Verdict::gone && verdict != Verdict::fresh;
    const auto us = [](bool there, double seconds) {
      return there ? format("%.1f", seconds * 1e6) : std::string("-");
    };
    append(out,
           format("%-*s %-11s %11s %11s %+11.1f %8s %9s  %s\n", w, what, pass.c_str(),
                  us(verdict != Verdict::fresh, d.before.mean).c_str(),
                  us(verdict != Verdict::gone, d.after.mean).c_str(), d.seconds() * 1e6,
                  both && d.before.mean > 0 ? format("%+.1f", 100 * d.relative()).c_str() : "-",
                  us(both && d.known(), both && d.known() ? d.chance() : 0).c_str(),
                  words_of(verdict)));
  };
  append(out, format("%-*s %-11s %11s %11s %11s %8s %9s  %s\n", w, "layer", "pass", "before_us",
                     "after_us", "change_us", "%", "chance_us", "change"));
  for (const Total& t : sums) line(t.what, "", t.difference, t.difference.verdict());
  for (std::size_t i = 0; i < n; ++i)
    line(all[i].any().name.c_str(), std::string(name(all[i].any().pass)), all[i].difference,
         all[i].verdict());
  const auto changed = std::size_t(std::count_if(all.begin(), all.end(), matters));
  if (n < all.size()) append(out, text('(', all.size() - n, " more)\n"));
  append(out, text(all.size() - changed, " of ", all.size(),
                   " rows: no change that could be told from chance (chance_us)\n"));
  return out;
}

}  // namespace lamina::detail
