// Findings: the few sentences that a reader of a profile would look for in its tables.
#include "report/compare.hpp"
#include "report/drawings/svg.hpp"
#include "sections.hpp"

#include <lamina/profile/detail/lines.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace lamina::detail {

namespace {

std::string named(const ProfileRow& r) {
  return text("<b>", escape_xml(r.name), "</b> ", words_of(r.pass));
}

/// "a, b and c"
std::string enumerate(const std::vector<std::string>& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i)
    out += text(i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ", parts[i]);
  return out;
}

using Sentences = std::vector<std::string>;

void say_waste(Sentences& all, const Profile& p, const std::vector<Line>& lines) {
  std::array<double, bound_count> bounds{};
  double least = 0, wasted = 0, kernels = 0;
  for (const Line& l : lines) {
    least += l.roof.seconds, wasted += l.roof.wasted, kernels += l.time();
    bounds[std::size_t(l.roof.bound)] += l.seconds();
  }
  const double step = p.end_to_end.mean;
  if (step <= 0 || kernels <= 0) return;
  std::vector<std::string> shares;
  for (std::size_t b = 0; b < bounds.size(); ++b)
    if (bounds[b] / step >= 0.005)
      shares.push_back(text(percent_text(bounds[b] / step),
                            shares.empty() ? " is bound by " : " by ", words_of(Bound(b))));
  all.push_back(text("At the roofs of this machine the kernels of a step would take ",
                     seconds_text(least), "; they take <b>", seconds_text(kernels),
                     "</b>. With waiting, <b>", seconds_text(wasted), "</b> (",
                     percent_text(wasted / step), " of a step) are wasted. Of a step&#39;s time ",
                     enumerate(shares), "."));
}

void say_wasters(Sentences& all, const Profile& p, const std::vector<Line>& lines) {
  std::vector<std::string> worst;
  for (const Line& l : lines) {
    if (worst.size() == 3 || l.roof.wasted <= 0) break;
    if (l.first().layer < 0) continue;
    const double of_roof = l.roof.fraction;
    worst.push_back(text(
        named(l.first()), " (", seconds_text(l.roof.wasted), "; bound by ", words_of(l.roof.bound),
        l.exposed() > 0.5 * l.roof.wasted ? text(", ", seconds_text(l.exposed()), " of it waiting")
        : of_roof > 0                     ? text(", at ", percent_text(of_roof), " of the roof")
                                          : std::string(),
        ")"));
  }
  if (!worst.empty()) all.push_back(text("Most is wasted in ", enumerate(worst), "."));

  const std::vector<Line> types = largest_first(lines_of(p, TableOptions::Group::type));
  if (types.size() > 1 && types[0].roof.wasted > 0)
    all.push_back(text("By type, <b>", escape_xml(types[0].name),
                       "</b> wastes most: ", seconds_text(types[0].roof.wasted), " of the ",
                       seconds_text(types[0].seconds()), " that ",
                       plural(types[0].rows.size(), "row"), " take."));
}

void say_communication(Sentences& all, const Profile& p, const std::vector<Line>& lines) {
  double comm = 0, exposed = 0, late = 0, transfer = 0, with = 0, alone = 0;
  const Line* most = nullptr;
  const Line* slowed = nullptr;
  for (const Line& l : lines) {
    comm += l.comm(), exposed += l.exposed();
    late += l.late(), transfer += l.transfer();
    if (!most || l.exposed() > most->exposed()) most = &l;
    if (l.slowdown() <= 0) continue;
    with += l.time(), alone += l.alone();
    const auto lost = [](const Line& x) { return x.time() - x.alone(); };
    if (!slowed || lost(l) > lost(*slowed)) slowed = &l;
  }
  if (comm > 0) {
    std::string s = text("Communication takes ", seconds_text(comm), " per step, ",
                         percent_text(hidden(comm, late, transfer) / comm),
                         " of it behind kernels; the ranks spend <b>", seconds_text(exposed),
                         "</b> with waiting for it");
    if (most && most->exposed() > 0)
      s += text(", ", seconds_text(most->exposed()), " of it in ", named(most->first()));
    all.push_back(s + ".");
  }
  if (exposed > 0)
    all.push_back(text("Of that waiting, ", seconds_text(late), " are for ranks that came late, ",
                       seconds_text(transfer), " for bytes to move, and ",
                       seconds_text(std::max(0.0, exposed - late - transfer)),
                       " for handing over and waking up."));
  if (alone > 0 && with <= alone) all.push_back("Kernels take no longer beside communication.");
  if (with > alone && alone > 0)
    all.push_back(text("Beside communication kernels take ", percent_text(with / alone - 1),
                       " longer than alone; ", named(slowed->first()), " loses most, at ",
                       format("%.2f", slowed->slowdown()), " times its time alone."));
  if (p.ranks > 1 && p.compute.mean > 0)
    all.push_back(text("Rank ", p.compute.slowest, " is the slowest: its kernels take ",
                       format("%.3f", p.compute.imbalance()), " times the mean of the ", p.ranks,
                       " ranks."));
}

void say_above(Sentences& all, const std::vector<Line>& lines) {
  std::vector<std::string> unexplained;
  struct Reason {
    std::string what, words;
    std::size_t rows = 1;
  };
  std::vector<Reason> reasons;
  for (const Line& l : lines) {
    if (!l.roof.above) continue;
    const std::string& words = l.roof.reason;
    if (words.empty()) {
      unexplained.push_back(text(named(l.first()), " at ", percent_text(l.roof.fraction)));
      continue;
    }
    const std::string what = words.substr(0, words.find(": "));  // then come the row's numbers
    const auto same = std::find_if(reasons.begin(), reasons.end(),
                                   [&](const Reason& r) { return r.what == what; });
    if (same == reasons.end())
      reasons.push_back({what, words});
    else if (++same->rows; same->words != words)
      same->words = what;
  }
  std::vector<std::string> parts;
  for (const Reason& r : reasons)
    parts.push_back(
        text(parts.empty() ? plural(r.rows, "row") : text(r.rows), " (", escape_xml(r.words), ")"));
  if (!parts.empty()) all.push_back(text("Above the roof are ", enumerate(parts), "."));
  if (unexplained.empty()) return;
  const std::size_t n = unexplained.size();
  unexplained.resize(std::min<std::size_t>(n, 3));
  all.push_back(text("<b class=\"flag\">UNEXPLAINED</b>: ", plural(n, "row"),
                     n == 1 ? " is" : " are", " above the roof without a known reason (",
                     enumerate(unexplained), n > 3 ? ", ..." : "",
                     "): a ceiling or a count is wrong."));
}

/// "+1.23 ms"
std::string signed_text(double seconds) {
  return text(seconds < 0 ? "&minus;" : "+", seconds_text(std::abs(seconds)));
}

void say_total(Sentences& all, const Total& total, const Profile& before, const Profile& after) {
  const Difference& d = total.difference;
  const Verdict verdict = d.verdict();
  const auto of_step = [&](const Measured& m, const Profile& p) {
    const bool part = std::string_view(total.what).find("step") == std::string_view::npos;
    return part && p.end_to_end.mean > 0
               ? text(seconds_text(m.mean), " (", percent_text(m.mean / p.end_to_end.mean), ')')
               : seconds_text(m.mean);
  };
  std::string s =
      text("<b>", static_cast<char>(std::toupper(total.what[0])), total.what + 1,
           "</b>: ", of_step(d.before, before), " before, ", of_step(d.after, after), " after: ");
  if (verdict == Verdict::none)
    append(s, words_of_none(d));
  else
    append(s, text("<b>", signed_text(d.seconds()), "</b>"));
  if (d.before.mean > 0 && verdict != Verdict::none)
    append(s, format(" (%+.1f %%)", 100 * d.relative()));
  if (verdict == Verdict::unknown)
    append(s, "; how much steps differ by chance is not known");
  else if (verdict != Verdict::none)
    append(s, text(", while steps differ by ", seconds_text(d.chance()), " by chance"));
  all.push_back(s + '.');
}

void say_rows(Sentences& all, const std::vector<Change>& rows) {
  std::vector<std::string> less, more;
  std::array<std::size_t, 6> count{};
  for (const Change& c : rows) {
    const Verdict v = c.verdict();
    ++count[std::size_t(v)];
    if (!c.both() || v == Verdict::none) continue;
    const double seconds = c.difference.seconds();
    auto& list = seconds < 0 ? less : more;
    if (list.size() < 3)
      list.push_back(text(named(c.any()), " (", signed_text(seconds),
                          v == Verdict::unknown ? ", perhaps by chance)" : ")"));
  }
  const auto say = [&](Verdict v, const char* what) {
    if (const std::size_t n = count[std::size_t(v)]; n > 0)
      all.push_back(text(plural(n, "row"), ' ', what));
  };
  if (!less.empty()) all.push_back(text("Gained most: ", enumerate(less), "."));
  if (!more.empty()) all.push_back(text("Lost most: ", enumerate(more), "."));
  say(Verdict::none, "with no change that could be told from chance.");
  say(Verdict::gone, "only in the run before.");
  say(Verdict::fresh, "only in the run after.");
}

/// `which` run, if there are two.
void say_disturbed(Sentences& all, const Profile& p, const char* which) {
  for (const std::string& s : disturbances(p))
    all.push_back(text("<b class=\"flag\">DISTURBED</b>", which, ": ", escape_xml(s), "."));
}

}  // namespace

std::vector<std::string> findings(const Profile& p) {
  Sentences all;
  const std::vector<Line> lines = largest_first(lines_of(p, TableOptions::Group::layer, true));
  if (lines.empty()) return {"No layer was measured."};
  if (has_ceilings(p)) {
    say_waste(all, p, lines);
    say_wasters(all, p, lines);
  } else {
    all.push_back(text("The machine&#39;s ceilings were not measured, so there are no roofs here: ",
                       "<code>lamina info --machine</code> measures them for later runs."));
    const auto longest =
        std::max_element(lines.begin(), lines.end(),
                         [](const Line& a, const Line& b) { return a.seconds() < b.seconds(); });
    all.push_back(text("Most time goes into ", named(longest->first()), ": ",
                       seconds_text(longest->seconds()), " per step."));
  }
  say_communication(all, p, lines);
  if (has_ceilings(p)) say_above(all, lines);
  say_disturbed(all, p, "");
  if (p.unaccounted() > 0.03)
    all.push_back(text("<b class=\"flag\">", percent_text(p.unaccounted()),
                       "</b> of a step lie in no row: more than the 3 % that timing may cost."));
  return all;
}

std::vector<std::string> findings(const Profile& before, const Profile& after) {
  Sentences all;
  for (const std::string& warning : unlike(before, after))
    all.push_back(text("<b class=\"flag\">Not alike</b>: ", escape_xml(warning), "."));
  say_disturbed(all, before, " before");
  say_disturbed(all, after, " after");
  const auto sums = totals(before, after);
  for (const Total& t : sums) {
    const std::string_view what = t.what;
    const bool asked = &t == &sums[0] || what == "unaccounted";
    const bool part = what == "kernels" || what == "waiting";
    if (asked || (part && t.difference.verdict() != Verdict::none))
      say_total(all, t, before, after);
  }
  say_rows(all, changes(before, after));
  return all;
}

}  // namespace lamina::detail
