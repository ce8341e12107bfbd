// The tables of the report's page. They are complete without the script, which sorts and filters.
#include "report/compare.hpp"
#include "report/drawings/svg.hpp"
#include "sections.hpp"
#include "small_table.hpp"

#include <algorithm>
#include <cmath>

namespace lamina::detail {

namespace {

/// A column: `group` lets the reader hide it with others. `cell` gives HTML; empty = nothing to
/// say.
struct Column {
  const char* head;
  const char* what;  // for the tooltip: the long name and the unit
  const char* group;
  std::function<std::string(const Line&)> cell;
  bool words = false;
};

std::string number(double v, int decimals) {
  return v > 0 ? format("%.*f", decimals, v) : std::string();
}
std::string micros(double seconds) { return number(seconds * 1e6, 1); }

/// A number with a bar behind it, of `part` of the cell's width.
std::string bar(const std::string& shown, double part, const char* kind) {
  if (shown.empty()) return shown;
  return text("<i class=\"bar ", kind,
              "\" style=\"--part:", format("%.3f", std::clamp(part, 0.0, 1.0)), "\"></i>", shown);
}

std::string layer_cell(const ProfileRow& r) {
  std::string about = escape_xml(r.type);
  if (!r.describe.empty()) about += ' ' + escape_xml(r.describe);
  return text("<b>", escape_xml(r.name), "</b>",
              about.empty() ? about : text("<small>", about, "</small>"));
}

std::vector<Column> columns_of(const Profile& p, const std::vector<Line>& lines) {
  double most = 0;
  for (const Line& l : lines) most = std::max(most, l.wasted());
  const double step = p.end_to_end.mean;
  std::vector<Column> c;
  const auto add = [&](const char* head, const char* what, const char* group, auto cell) {
    c.push_back({head, what, group, cell});
  };
  c.push_back({"layer", "layer, type and options", "core",
               [](auto& l) { return layer_cell(l.row); }, true});
  c.push_back({"pass", "pass of a training step", "core",
               [](auto& l) {
                 return l.index < 0 ? text(l.rows, l.rows == 1 ? " pass" : " passes")
                                    : std::string(words_of(l.row.pass));
               },
               true});
  if (has_ceilings(p)) {
    c.push_back({"bound", "what held the row up most", "core",
                 [](auto& l) { return bound_label(*l.roof); }, true});
    add("% of roof", "least possible time / time in kernels", "core", [](auto& l) {
      return bar(number(100 * l.roof->fraction, 1), l.roof->fraction,
                 l.roof->above ? "over" : "roof");
    });
    add("wasted &micro;s", "time in kernels and waiting beyond the roof", "core",
        [most](auto& l) { return bar(micros(l.wasted()), l.wasted() / most, "waste"); });
  }
  add("time &micro;s", "in kernels, per step, mean over ranks", "core",
      [](auto& l) { return micros(l.row.time.mean); });
  add("% of step", "kernels and waiting, of a recorded step", "core", [step](auto& l) {
    return step > 0 ? number(100 * l.row.seconds() / step, 2) : std::string();
  });
  add("GFLOP", "1 FMA = 2 FLOP; convolutions counted as direct", "work",
      [](auto& l) { return number(l.row.work.flops / 1e9, 3); });
  add("MB", "compulsory bytes: each operand once", "work",
      [](auto& l) { return number(l.row.work.bytes / 1e6, 2); });
  add("FLOP/B", "intensity, of compulsory bytes", "work",
      [](auto& l) { return number(l.row.work.intensity(), 2); });
  add("GFLOP/s", "achieved", "work",
      [](auto& l) { return number(l.row.flops_per_second() / 1e9, 1); });
  add("GB/s", "achieved, of compulsory bytes", "work",
      [](auto& l) { return number(l.row.bytes_per_second() / 1e9, 1); });
  add("comm &micro;s", "in collectives, on the communication thread", "communication",
      [](auto& l) { return micros(l.row.comm.mean); });
  add("exposed &micro;s", "of that, what kernels waited for", "communication",
      [](auto& l) { return micros(l.row.exposed.mean); });
  add("hidden &micro;s", "of that, what ran behind kernels", "communication",
      [](auto& l) { return micros(l.hidden()); });
  add("wire MB", "that each rank&#39;s link carries, in one direction", "communication",
      [](auto& l) { return number(l.row.wire_bytes / 1e6, 3); });
  add("alone &micro;s", "time in kernels while nothing communicates", "communication",
      [](auto& l) { return micros(l.row.alone.mean); });
  add("slowdown", "time / time alone", "communication",
      [](auto& l) { return number(l.slowdown(), 2); });
  const bool ranks = p.ranks > 1;
  add("min &micro;s", "time of the fastest rank", "ranks",
      [ranks](auto& l) { return ranks ? micros(l.row.time.min) : ""; });
  add("max &micro;s", "time of the slowest rank", "ranks",
      [ranks](auto& l) { return ranks ? micros(l.row.time.max) : ""; });
  add("slowest", "the slowest rank", "ranks",
      [ranks](auto& l) { return ranks ? text(l.row.time.slowest) : ""; });
  add("imbalance", "slowest / mean", "ranks",
      [ranks](auto& l) { return ranks ? number(l.row.time.imbalance(), 3) : ""; });
  add("predicted &micro;s", "kernels and waiting, by the plan", "plan",
      [](auto& l) { return micros(l.row.predicted); });
  add("error", "predicted / measured - 1, in %", "plan", [](auto& l) {
    return l.row.predicted > 0 && l.row.seconds() > 0
               ? format("%+.1f", 100 * (l.row.predicted / l.row.seconds() - 1))
               : std::string();
  });
  const auto counted = [&](const char* head, const char* what, double (*of)(const Counts&), int d) {
    add(head, what, "counters",
        [of, d](auto& l) { return l.row.counts ? number(of(*l.row.counts), d) : std::string(); });
  };
  counted(
      "Mcycles", "of all threads of this rank", [](auto& k) { return k.cycles / 1e6; }, 2);
  counted(
      "instr./cycle", "instructions per cycle",
      [](auto& k) { return k.cycles > 0 ? k.instructions / k.cycles : 0; }, 2);
  counted(
      "kmisses", "of the last cache level, in lines", [](auto& k) { return k.misses / 1e3; }, 1);
  counted(
      "DRAM MB", "measured at the memory controllers, of the node",
      [](auto& k) { return k.dram_bytes / 1e6; }, 2);
  const auto word = [&](const char* head, const char* what, std::string ProfileRow::*of) {
    c.push_back({head, what, "kernels", [of](auto& l) { return escape_xml(l.row.*of); }, true});
  };
  word("split", "how the layer is cut over the ranks", &ProfileRow::split);
  word("algorithm", "that the back end chose", &ProfileRow::algorithm);
  add("scratch MB", "workspace of the layer and shared scratch", "kernels",
      [](auto& l) { return number(l.row.workspace / 1e6, 2); });

  std::erase_if(c, [&](const Column& column) {
    return std::string_view(column.group) != "core" &&
           std::all_of(lines.begin(), lines.end(),
                       [&](const Line& l) { return column.cell(l).empty(); });
  });
  return c;
}

std::string head_cell(const char* classes, const char* what, const char* head, const char* sorted) {
  return text("<th scope=\"col\" class=\"", classes, "\" title=\"", what, "\" aria-sort=\"", sorted,
              "\"><button type=\"button\">", head, "</button></th>");
}

void body_of(std::string& out, const std::vector<Column>& columns, const std::vector<Line>& lines,
             const char* attributes) {
  append(out, text("<tbody ", attributes, ">\n"));
  for (const Line& l : lines) {
    append(out, l.index >= 0
                    ? text("<tr data-row=\"", l.index, "\" data-layer=\"", l.row.layer, "\">")
                    : text("<tr data-layer=\"", l.row.layer, "\">"));
    for (const Column& c : columns)
      append(out, text("<td class=\"", c.words ? "w " : "n ", c.group, "\">", c.cell(l), "</td>"));
    append(out, "</tr>\n");
  }
  append(out, "</tbody>\n");
}

std::string group_table(const Profile& p, const char* caption,
                        std::string (*key)(const ProfileRow&)) {
  auto sums = sums_of(p, key);
  std::stable_sort(sums.begin(), sums.end(),
                   [](const Line& a, const Line& b) { return a.row.seconds() > b.row.seconds(); });
  if (sums.empty()) return "";
  const double most = sums.front().row.seconds();
  const bool roofs = has_ceilings(p);
  std::vector<std::string> heads = {"", "rows", "ms", "% of step"};
  if (roofs) heads.insert(heads.end(), {"wasted ms", "% of roof"});
  SmallTable table(caption, heads);
  for (const Line& l : sums) {
    const double s = l.row.seconds();
    std::vector<std::string> cells = {
        escape_xml(key(l.row)), text(l.rows),
        bar(format("%.2f", s * 1e3), most > 0 ? s / most : 0, "time"),
        p.end_to_end.mean > 0 ? format("%.1f", 100 * s / p.end_to_end.mean) : ""};
    if (roofs)
      cells.insert(cells.end(),
                   {format("%.2f", l.wasted() * 1e3), number(100 * l.roof->fraction, 1)});
    table.row(cells);
  }
  return table.done();
}

}  // namespace

std::string bound_label(const Roof& roof) {
  const std::string_view b = name(roof.bound);
  std::string out = text("<span class=\"bound ", b, "\">", b, "</span>");
  if (roof.above)
    append(out, text(" <abbr class=\"above\" title=\"above its roof: ",
                     roof.reason.empty() ? "UNEXPLAINED" : escape_xml(roof.reason), "\">",
                     roof.reason.empty() ? "unexplained" : "above", "</abbr>"));
  return out;
}

std::string rows_table(const Profile& p) {
  const std::vector<Line> rows = rows_of(p);
  const std::vector<Line> layers = sums_of(p, by_layer);
  const std::vector<Column> columns = columns_of(p, rows);
  const std::string_view sorted = has_ceilings(p) ? "wasted &micro;s" : "time &micro;s";
  std::string out = "<div class=\"scroll\" tabindex=\"-1\"><table id=\"rows\"><thead><tr>\n";
  for (const Column& c : columns)
    append(out, head_cell(text(c.words ? "w " : "n ", c.group).c_str(), c.what, c.head,
                          c.head == sorted ? "descending" : "none") +
                    "\n");
  append(out, "</tr></thead>\n");
  body_of(out, columns, rows, "class=\"passes\"");
  body_of(out, columns, layers, "class=\"layers\" hidden");
  return out + "</table></div>\n";
}

std::string changes_table(const Profile& before, const Profile& after) {
  const std::vector<Change> all = changes(before, after);
  const double most = all.empty() ? 0 : std::abs(all.front().difference());
  std::string out = "<div class=\"scroll\" tabindex=\"-1\"><table id=\"rows\"><thead><tr>\n";
  const auto head = [&](const char* classes, const char* what, const char* words,
                        const char* sorted = "none") {
    append(out, head_cell(classes, what, words, sorted) + "\n");
  };
  head("w", "layer, type and options", "layer");
  head("w", "pass of a training step", "pass");
  head("n", "kernels and waiting, per step", "before &micro;s");
  head("n", "kernels and waiting, per step", "after &micro;s");
  head("n", "after - before; sorted by its size", "difference &micro;s", "other");
  head("n", "of the time before", "difference %");
  head("n", "least possible time / time in kernels", "% of roof before");
  head("n", "least possible time / time in kernels", "% of roof after");
  head("w", "what held the row up most, before", "bound before");
  head("w", "what held the row up most, after", "bound after");
  append(out, "</tr></thead>\n<tbody class=\"passes\">\n");
  for (const Change& c : all) {
    const auto time = [](const ProfileRow* r) {
      return r ? format("%.1f", r->seconds() * 1e6) : std::string("&ndash;");
    };
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
    const double us = c.difference() * 1e6;
    const std::string difference =
        bar(format("%+.1f", us), most > 0 ? std::abs(c.difference()) / most : 0,
            us > 0 ? "loss" : "gain");
    append(out, "<tr");
    if (c.after) append(out, text(" data-row=\"", c.after - after.rows.data(), '"'));
    if (c.before) append(out, text(" data-before=\"", c.before - before.rows.data(), '"'));
    append(out, text(" data-layer=\"", c.any().layer, "\">"));
    append(out, text("<td class=\"w\">", layer_cell(c.any()), "</td><td class=\"w\">",
                     words_of(c.any().pass), "</td>"));
    for (const std::string& cell : {time(c.before), time(c.after), difference,
                                    c.both()  ? format("%+.1f", 100 * c.relative())
                                    : c.after ? std::string("<em>only after</em>")
                                              : std::string("<em>only before</em>"),
                                    of_roof(roof_before), of_roof(roof_after)})
      append(out, text("<td class=\"n\">", cell, "</td>"));
    append(out, text("<td class=\"w\">", bound(roof_before), "</td><td class=\"w\">",
                     bound(roof_after), "</td></tr>\n"));
  }
  return out + "</tbody></table></div>\n";
}

std::string groups_tables(const Profile& p) {
  return group_table(p, "By type", by_type) +
         group_table(p, "By stage (height x width of the output)", by_stage);
}

}  // namespace lamina::detail
