// The tables of a comparison: the step and its parts, and every row of both runs.
#include "cells.hpp"
#include "report/compare.hpp"
#include "sections.hpp"
#include "small_table.hpp"

#include <lamina/profile/roofline.hpp>

#include <cmath>
#include <optional>

namespace lamina::detail {

namespace {

/// The mean, and what steps differ from it, where that is known; in units of `unit` seconds.
std::string time_cell(const Measured& m, double unit, const char* digits) {
  std::string s = format(digits, m.mean / unit);
  if (m.std >= 0 && m.steps > 1)
    append(s, text(" <small>&plusmn; ", format(digits, m.std / unit), "</small>"));
  return s;
}

std::string percent_cell(const Difference& d) {
  return d.before.mean > 0 ? format("%+.1f", 100 * d.relative()) : std::string();
}

std::string verdict_cell(Verdict v) {
  const char* kind = v == Verdict::more ? "loss" : v == Verdict::less ? "gain" : "";
  return text("<span class=\"verdict ", kind, "\">", words_of(v), "</span>");
}

const char* bar_of(Verdict v, double seconds) {
  return v == Verdict::none ? "nothing" : seconds > 0 ? "loss" : "gain";
}

std::string row_of(const Change& c, const Profile& before, const Profile& after, double most) {
  const auto against = [](const Profile& p, const ProfileRow* r) {
    return r && has_ceilings(p) ? std::optional(roof(p, *r)) : std::nullopt;
  };
  const auto roof_before = against(before, c.before), roof_after = against(after, c.after);
  const auto of_roof = [](const std::optional<Roof>& r) {
    return r ? number(100 * r->fraction, 1) : std::string();
  };
  const auto bound = [](const std::optional<Roof>& r) {
    return r ? bound_label(*r) : std::string();
  };
  const Difference& d = c.difference;
  const auto time = [&](bool there, const Measured& m) {
    return there ? time_cell(m, 1e-6, "%.1f") : std::string("&ndash;");
  };
  std::string out = "<tr";
  if (c.after) append(out, text(" data-row=\"", c.after - after.rows.data(), '"'));
  if (c.before) append(out, text(" data-before=\"", c.before - before.rows.data(), '"'));
  if (c.after) append(out, text(" data-layer=\"", c.after->layer, '"'));
  if (c.before) append(out, text(" data-layer-before=\"", c.before->layer, '"'));
  append(out, text("><td class=\"w\">", layer_cell(c.any()), "</td><td class=\"w\">",
                   words_of(c.any().pass), "</td>"));
  const double part = most > 0 ? std::abs(d.seconds()) / most : 0;
  for (const std::string& cell :
       {time(c.before, d.before), time(c.after, d.after),
        bar(format("%+.1f", d.seconds() * 1e6), part, bar_of(c.verdict(), d.seconds())),
        c.both() ? percent_cell(d) : std::string(),
        c.both() && d.known() ? format("%.1f", d.chance() * 1e6) : std::string()})
    append(out, text("<td class=\"n\">", cell, "</td>"));
  append(out, text("<td class=\"w\">", verdict_cell(c.verdict()), "</td>"));
  for (const auto& r : {roof_before, roof_after})
    append(out, text("<td class=\"n\">", of_roof(r), "</td>"));
  const bool moved = roof_before && roof_after && roof_before->bound != roof_after->bound;
  append(out, text("<td class=\"w\">", moved ? bound(roof_before) + " &rarr; " : std::string(),
                   bound(roof_after ? roof_after : roof_before), "</td>"));
  return out + "</tr>\n";
}

}  // namespace

std::string totals_table(const Profile& before, const Profile& after) {
  const std::vector<Total> all = totals(before, after);
  if (all.empty()) return "";
  SmallTable table("A step as a whole, ms",
                   {"", "before", "after", "difference", "%", "by chance &plusmn;", "change"});
  for (const Total& t : all) {
    const Difference& d = t.difference;
    table.row({text("<b>", t.what, "</b> <small>", t.about, "</small>"),
               time_cell(d.before, 1e-3, "%.3f"), time_cell(d.after, 1e-3, "%.3f"),
               format("%+.3f", d.seconds() * 1e3), percent_cell(d),
               d.known() ? format("%.3f", d.chance() * 1e3) : std::string("&ndash;"),
               verdict_cell(d.verdict())});
  }
  return table.done();
}

std::string changes_table(const Profile& before, const Profile& after) {
  const std::vector<Change> all = changes(before, after);
  double most = 0;
  for (const Change& c : all) most = std::max(most, std::abs(c.difference.seconds()));
  std::string out = table_begin();
  const auto head = [&](const char* classes, const char* what, const char* words,
                        const char* sorted = "none") {
    append(out, head_cell(classes, what, words, sorted) + "\n");
  };
  const char* time = "kernels and waiting, per step; &plusmn; standard deviation over the steps";
  head("w", "layer, type and options", "layer");
  head("w", "pass of a training step", "pass");
  head("n", time, "before &micro;s");
  head("n", time, "after &micro;s");
  head("n", "after - before; what changed first, sorted by its size", "difference &micro;s",
       "other");
  head("n", "of the time before", "difference %");
  head("n", "up to here a difference cannot be told from chance", "by chance &plusmn; &micro;s");
  head("w", "what the difference says; none: none that could be told from chance", "change");
  head("n", "least possible time / time in kernels", "% of roof before");
  head("n", "least possible time / time in kernels", "% of roof after");
  head("w", "what held the row up most, before and after", "bound");
  append(out, "</tr></thead>\n<tbody class=\"passes\">\n");
  for (const Change& c : all) append(out, row_of(c, before, after, most));
  return out + "</tbody>" + table_end(all.size());
}

}  // namespace lamina::detail
