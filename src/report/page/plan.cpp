// The plan on the report's page: how layers are split, and what was predicted beside what was
// measured.
#include "cells.hpp"
#include "report/compare.hpp"
#include "sections.hpp"
#include "small_table.hpp"

#include <lamina/profile/detail/lines.hpp>

#include <utility>

namespace lamina::detail {

namespace {

std::string millis(double seconds) { return number(seconds * 1e3, 3); }

/// Layers one after the other that are split alike.
struct Alike {
  Line line;
  std::string last;
  int layers = 1;

  std::string words() const {
    const std::string first = escape_xml(line.name);
    const std::string& split = line.rows.back()->split;
    return text("<b>", layers == 1 ? first : text(first, " .. ", escape_xml(last)), "</b><small>",
                layers == 1 ? "" : text(layers, " layers, "), escape_xml(split), "</small>");
  }
};

/// In the network's order; a layer has what was inserted before it with it.
std::vector<Alike> alike(const Profile& p) {
  std::vector<Alike> all;
  std::vector<const ProfileRow*> inserted;
  for (Line& l : lines_of(p, TableOptions::Group::layer)) {
    const ProfileRow& row = l.first();
    if (row.layer <= 0) continue;
    if (row.type == "Reshard" || row.type == "Reorder") {
      inserted.insert(inserted.end(), l.rows.begin(), l.rows.end());
      continue;
    }
    l.rows.insert(l.rows.begin(), inserted.begin(), inserted.end());
    inserted.clear();
    if (all.empty() || all.back().line.rows.back()->split != row.split) {
      all.push_back({l, l.name});
      continue;
    }
    Alike& group = all.back();
    group.line.rows.insert(group.line.rows.end(), l.rows.begin(), l.rows.end());
    group.last = l.name, ++group.layers;
  }
  return all;
}

std::string splits_table(const Profile& p) {
  std::vector<std::string> heads = {"layers and their split", "ms"};
  if (p.plan) heads.insert(heads.end(), {"predicted ms", "error, %"});
  SmallTable table("Kernels and waiting", heads);
  const auto row = [&](const std::string& what, double measured, double predicted) {
    std::vector<std::string> cells = {what, millis(measured)};
    if (p.plan) cells.insert(cells.end(), {millis(predicted), error_text(predicted, measured)});
    table.row(cells);
  };
  for (const Alike& group : alike(p))
    row(group.words(), group.line.seconds(), predicted_of(group.line));
  double outside = 0;
  for (const ProfileRow& r : p.rows)
    if (r.layer <= 0) outside += r.seconds();
  row("outside of layers", outside, 0);
  row("<b>a step</b>", step_seconds(p), p.plan ? p.plan->seconds : 0);
  return table.done();
}

std::string timed_table(const PlannedStep& plan) {
  SmallTable table("Plans that were timed", {"plan", "ms, median", "predicted ms", "error, %"});
  for (const PlanTime& t : plan.timed)
    table.row({text("<b>", escape_xml(t.name), "</b>",
                    &t == &plan.timed[0] ? "<small>taken</small>" : ""),
               millis(t.median), millis(t.predicted), error_text(t.predicted, t.median)});
  return table.done();
}

}  // namespace

std::string plan_tables(const Profile& p) {
  if (!p.plan && !has_unlike_splits(p)) return "";
  return text("<div class=\"tables\">", splits_table(p),
              p.plan && !p.plan->timed.empty() ? timed_table(*p.plan) : "", "</div>");
}

}  // namespace lamina::detail
