// The tables of the report's page. They are complete without the script, which sorts and filters.
#include "cells.hpp"
#include "report/drawings/svg.hpp"
#include "sections.hpp"
#include "small_table.hpp"

#include <lamina/profile/detail/lines.hpp>

#include <algorithm>
#include <cmath>
#include <functional>

namespace lamina::detail {

namespace {

/// A column: `group` lets the reader hide it with others. `cell` gives HTML; empty = nothing to
/// say.
struct PageColumn {
  const char* head;
  const char* what;  // for the tooltip: the long name and the unit
  const char* group;
  std::function<std::string(const Line&)> cell;
  bool words = false;
};

std::string micros(double seconds) { return number(seconds * 1e6, 1); }

double over(double a, double b) { return b > 0 ? a / b : 0; }

/// Passes take turns with it.
double workspace(const Line& l) {
  double most = 0;
  for (const ProfileRow* r : l.rows) most = std::max(most, r->workspace);
  return most;
}

/// The row whose slowest rank takes longest.
const ProfileRow& longest(const Line& l) {
  return **std::max_element(l.rows.begin(), l.rows.end(),
                            [](auto* a, auto* b) { return a->time.max < b->time.max; });
}

/// `lines` are passes: what they have nothing in is left out.
std::vector<PageColumn> columns_of(const Profile& p, const std::vector<Line>& lines) {
  double most = 0;
  for (const Line& l : lines) most = std::max(most, l.roof.wasted);
  const double step = p.end_to_end.mean;
  std::vector<PageColumn> c;
  const auto add = [&](const char* head, const char* what, const char* group, auto cell) {
    c.push_back({head, what, group, cell});
  };
  c.push_back({"layer", "layer, type and options", "core",
               [](auto& l) { return layer_cell(l.first()); }, true});
  c.push_back({"pass", "pass of a training step", "core",
               [](auto& l) {
                 return l.rows.size() == 1 ? std::string(words_of(l.first().pass))
                                           : text(l.rows.size(), " passes");
               },
               true});
  const auto word = [&](const char* head, const char* what, const char* group,
                        std::string ProfileRow::*of) {
    c.push_back({head, what, group, [of](auto& l) { return escape_xml(l.shared(of)); }, true});
  };
  word("split", "how the layer is cut over the ranks", has_unlike_splits(p) ? "core" : "plan",
       &ProfileRow::split);
  if (has_ceilings(p)) {
    c.push_back({"bound", "what held the row up most; kernel: far below both roofs", "core",
                 [](auto& l) { return l.seconds() > 0 ? bound_label(l.roof) : std::string(); },
                 true});
    add("% of roof", "least possible time / time in kernels", "core", [](auto& l) {
      return bar(number(100 * l.roof.fraction, 1), l.roof.fraction,
                 !l.roof.above           ? "roof"
                 : l.roof.reason.empty() ? "unexplained"
                                         : "over");
    });
    add("wasted &micro;s", "time in kernels and waiting beyond the roof", "core",
        [most](auto& l) { return bar(micros(l.roof.wasted), l.roof.wasted / most, "waste"); });
  }
  add("time &micro;s", "in kernels, per step, mean over ranks", "core",
      [](auto& l) { return micros(l.time()); });
  add("% of step", "kernels and waiting, of a recorded step", "core",
      [step](auto& l) { return step > 0 ? number(100 * l.seconds() / step, 2) : std::string(); });
  add("GFLOP", "1 FMA = 2 FLOP; convolutions counted as direct", "work",
      [](auto& l) { return number(l.work().flops / 1e9, 3); });
  add("MB", "compulsory bytes: each operand once", "work",
      [](auto& l) { return number(l.work().bytes / 1e6, 2); });
  add("FLOP/B", "intensity, of compulsory bytes", "work",
      [](auto& l) { return number(l.work().intensity(), 2); });
  add("GFLOP/s", "achieved", "work",
      [](auto& l) { return number(over(l.work().flops, l.time()) / 1e9, 1); });
  add("GB/s", "achieved, of compulsory bytes", "work",
      [](auto& l) { return number(over(l.work().bytes, l.time()) / 1e9, 1); });
  add("comm &micro;s", "in collectives, on the communication thread", "communication",
      [](auto& l) { return micros(l.comm()); });
  add("exposed &micro;s", "handing over, waiting and waking up, beside kernels", "communication",
      [](auto& l) { return micros(l.exposed()); });
  add("late &micro;s", "of exposed: while a rank that was needed had not come", "communication",
      [](auto& l) { return micros(l.late()); });
  add("transfer &micro;s", "of exposed: while all had come, and bytes moved", "communication",
      [](auto& l) { return micros(l.transfer()); });
  add("hidden &micro;s", "of comm, what ran behind kernels", "communication",
      [](auto& l) { return micros(l.hidden()); });
  add("wire MB", "that each rank&#39;s link carries, in one direction", "communication",
      [](auto& l) { return number(l.sum([](auto& r) { return r.wire_bytes; }) / 1e6, 3); });
  add("alone &micro;s", "time in kernels while nothing communicates", "communication",
      [](auto& l) { return micros(l.alone()); });
  add("slowdown", "time / time alone; no: no longer than alone", "communication",
      [](auto& l) { return l.slowdown() == 1 ? "no" : number(l.slowdown(), 2); });
  const bool ranks = p.ranks > 1;
  add("min &micro;s", "time of the fastest rank", "ranks",
      [ranks](auto& l) { return ranks ? micros(l.sum([](auto& r) { return r.time.min; })) : ""; });
  add("max &micro;s", "time of the slowest rank", "ranks",
      [ranks](auto& l) { return ranks ? micros(l.sum([](auto& r) { return r.time.max; })) : ""; });
  add("slowest", "the slowest rank", "ranks",
      [ranks](auto& l) { return ranks ? text(longest(l).time.slowest) : ""; });
  add("imbalance", "slowest / mean", "ranks",
      [ranks](auto& l) { return ranks ? number(l.imbalance(), 3) : ""; });
  add("predicted &micro;s", "kernels and waiting, by the plan", "plan",
      [](auto& l) { return micros(predicted_of(l)); });
  add("error, %", "predicted / measured - 1", "plan",
      [](auto& l) { return error_text(predicted_of(l), l.seconds()); });
  add("Mcycles", "of all threads of this rank", "counters",
      [](auto& l) { return number(l.counted(&Counts::cycles) / 1e6, 2); });
  add("instr./cycle", "instructions per cycle", "counters", [](auto& l) {
    return number(over(l.counted(&Counts::instructions), l.counted(&Counts::cycles)), 2);
  });
  add("kmisses", "of the last cache level, in lines", "counters",
      [](auto& l) { return number(l.counted(&Counts::misses) / 1e3, 1); });
  add("DRAM MB", "measured at the memory controllers, of the node", "counters",
      [](auto& l) { return number(l.counted(&Counts::dram_bytes) / 1e6, 2); });
  word("algorithm", "that the back end chose", "kernels", &ProfileRow::algorithm);
  add("scratch MB", "workspace of the layer and shared scratch", "kernels",
      [](auto& l) { return number(workspace(l) / 1e6, 2); });

  std::erase_if(c, [&](const PageColumn& column) {
    return std::string_view(column.group) != "core" &&
           std::all_of(lines.begin(), lines.end(),
                       [&](const Line& l) { return column.cell(l).empty(); });
  });
  return c;
}

void body_of(std::string& out, const Profile& p, const std::vector<PageColumn>& columns,
             const std::vector<Line>& lines, bool per_pass) {
  append(out, per_pass ? "<tbody class=\"passes\">\n" : "<tbody class=\"layers\" hidden>\n");
  for (const Line& l : lines) {
    append(out, "<tr");
    if (per_pass) append(out, text(" data-row=\"", &l.first() - p.rows.data(), '"'));
    append(out, text(" data-layer=\"", l.first().layer, "\">"));
    for (const PageColumn& c : columns)
      append(out, text("<td class=\"", c.words ? "w " : "n ", c.group, "\">", c.cell(l), "</td>"));
    append(out, "</tr>\n");
  }
  append(out, "</tbody>\n");
}

std::string group_table(const Profile& p, const char* caption, TableOptions::Group by) {
  auto sums = lines_of(p, by);
  std::stable_sort(sums.begin(), sums.end(),
                   [](const Line& a, const Line& b) { return a.seconds() > b.seconds(); });
  if (sums.empty()) return "";
  const double most = sums.front().seconds();
  const bool roofs = has_ceilings(p);
  std::vector<std::string> heads = {"", "rows", "ms", "% of step"};
  if (roofs) heads.insert(heads.end(), {"wasted ms", "% of roof"});
  SmallTable table(caption, heads);
  for (const Line& l : sums) {
    const double s = l.seconds();
    std::vector<std::string> cells = {
        escape_xml(l.name), text(l.rows.size()),
        bar(format("%.2f", s * 1e3), most > 0 ? s / most : 0, "time"),
        p.end_to_end.mean > 0 ? format("%.1f", 100 * s / p.end_to_end.mean) : ""};
    if (roofs)
      cells.insert(cells.end(),
                   {format("%.2f", l.roof.wasted * 1e3), number(100 * l.roof.fraction, 1)});
    table.row(cells);
  }
  return table.done();
}

}  // namespace

std::string bound_label(const Roof& roof) {
  const std::string_view b = name(roof.bound);
  std::string out = text("<span class=\"bound ", b, "\">", b, "</span>");
  if (!roof.above) return out;
  const bool known = !roof.reason.empty();
  return out + text(" <abbr class=\"above", known ? "" : " unexplained",
                    "\" title=\"above its roof: ", known ? escape_xml(roof.reason) : "UNEXPLAINED",
                    "\">", known ? "above" : "unexplained", "</abbr>");
}

std::string rows_table(const Profile& p) {
  const std::vector<Line> rows = largest_first(lines_of(p, TableOptions::Group::layer, true));
  const std::vector<Line> layers = largest_first(lines_of(p, TableOptions::Group::layer));
  const std::vector<PageColumn> columns = columns_of(p, rows);
  const std::string_view sorted = has_ceilings(p) ? "wasted &micro;s" : "time &micro;s";
  std::string out = table_begin();
  for (const PageColumn& c : columns)
    append(out, head_cell(text(c.words ? "w " : "n ", c.group).c_str(), c.what, c.head,
                          c.head == sorted ? "descending" : "none") +
                    "\n");
  append(out, "</tr></thead>\n");
  body_of(out, p, columns, rows, true);
  body_of(out, p, columns, layers, false);
  return out + table_end(rows.size());
}

std::string ranks_table(const Profile& profile) {
  if (profile.over_time.changes.empty()) return "";
  SmallTable table("Changes", {"what", "step", "pause, ms", "moved, MB", "prepared, s"});
  for (const RanksChange& c : profile.over_time.changes) {
    std::string workers;
    for (const int w : c.workers) workers += (workers.empty() ? "" : ", ") + text(w);
    const std::string what = c.from == c.to
                                 ? text("workers ", workers)
                                 : text(c.from, " to ", plural(std::size_t(c.to), "rank"));
    table.row({text("<b>", what, "</b><small>", escape_xml(c.why), "</small>"), text(c.step),
               number(c.pause * 1e3, 2), number(c.bytes / 1e6, 1), number(c.prepared, 2)});
  }
  return table.done();
}

std::string groups_tables(const Profile& p) {
  return group_table(p, "By type", TableOptions::Group::type) +
         group_table(p, "By stage (height x width of the output)", TableOptions::Group::stage);
}

}  // namespace lamina::detail
