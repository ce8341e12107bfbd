// The table of a profile: which columns fit into a terminal, and the totals below them.
#pragma once

#include <lamina/base/detail/wrap.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/profile/detail/columns.hpp>
#include <lamina/profile/table.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

namespace detail::profile_table {

/// In the wanted order; what is not among the top ones is summed up in the last.
inline std::vector<Line> choose(const Profile& p, const TableOptions& o) {
  using Sort = TableOptions::Sort;
  check(o.sort != Sort::wasted || has_ceilings(p),
        "sort by wasted time: the profile has no ceilings of its machine to compare with");
  std::vector<Line> lines = detail::lines_of(p, o.group, o.wide);
  const auto value = [&](const Line& l) {
    return o.sort == Sort::wasted ? l.roof.wasted : l.seconds();
  };
  const auto larger = [&](const Line& a, const Line& b) { return value(a) > value(b); };
  std::vector<Line> others;
  if (o.top > 0 && lines.size() > std::size_t(o.top)) {
    std::vector<Line> sorted = lines;
    std::stable_sort(sorted.begin(), sorted.end(), larger);
    others.assign(sorted.begin() + o.top, sorted.end());
    std::erase_if(lines, [&](const Line& l) {
      return std::any_of(others.begin(), others.end(),
                         [&](const Line& other) { return other.rows[0] == l.rows[0]; });
    });
  }
  if (o.sort == Sort::time || o.sort == Sort::wasted)
    std::stable_sort(lines.begin(), lines.end(), larger);
  if (o.sort == Sort::name)
    std::stable_sort(lines.begin(), lines.end(),
                     [](const Line& a, const Line& b) { return a.name < b.name; });
  if (!others.empty())
    lines.push_back(detail::sum_of(p, text('(', others.size(), " more)"), others));
  return lines;
}

/// "classifier.1.reshard" -> "clas.1.reshard": letters go from the end of the longest part, so that
/// numbers and what tells names apart stay.
inline std::string shorten(std::string s, std::size_t width) {
  while (s.size() > width) {
    std::size_t longest = 1, last = std::string::npos, letters = 0;
    for (std::size_t i = 0, at = 0; i <= s.size(); ++i) {
      if (i < s.size() && s[i] != '.') {
        if (s[i] < '0' || s[i] > '9') ++letters, at = i;
        continue;
      }
      if (letters > longest) longest = letters, last = at;
      letters = 0;
    }
    if (last == std::string::npos) return s.substr(0, width);
    s.erase(last, 1);
  }
  return s;
}

inline std::size_t width_of(const Column& c) {
  std::size_t width = c.head.size();
  for (const Cell& cell : c.cells) width = std::max(width, cell.text.size());
  return width;
}

/// Drops columns, the least worth first, until the others fit beside names of a fair length, which
/// is shorter where it saves one of the columns that matter most. Names get what is left over.
inline std::vector<std::size_t> fit(std::vector<Column>& columns, const TableOptions& options) {
  constexpr std::size_t least = 8, short_name = 12, fair_name = 20;
  const std::size_t names = width_of(columns[0]);
  const auto limit = options.wide ? ~std::size_t(0) : std::size_t(std::max(options.width, 0));
  const auto others = [&] {
    std::size_t sum = 0;
    for (std::size_t i = 1; i < columns.size(); ++i) sum += 1 + width_of(columns[i]);
    return sum;
  };
  while (true) {
    const auto worst =
        std::max_element(columns.begin(), columns.end(),
                         [](const Column& a, const Column& b) { return a.worth < b.worth; });
    const std::size_t fair = worst->worth <= Worth::exposed ? short_name : fair_name;
    if (worst->worth <= Worth::needed || others() + std::min(names, fair) <= limit) break;
    columns.erase(worst);
  }
  std::vector<std::size_t> widths;
  for (const Column& c : columns) widths.push_back(width_of(c));
  const std::size_t rest = limit - std::min(limit, others());
  widths[0] = std::clamp(rest, std::min(least, names), names);
  return widths;
}

inline std::string grid(const std::vector<Column>& columns, const std::vector<std::size_t>& widths,
                        std::size_t lines, bool colour) {
  std::string out;
  const auto line = [&](auto&& cell) {
    std::string blanks;  // those at the end of a line are never written
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const Cell c = cell(columns[i]);
      const std::string s = shorten(c.text, widths[i]);
      const std::string blank(widths[i] - s.size(), ' ');
      if (!columns[i].left) blanks += blank;
      const std::size_t end = s.find_last_not_of(' ') + 1;
      if (end > 0) {
        const bool styled = colour && *c.style;
        append(out, text(blanks, styled ? c.style : "", s.substr(0, end), styled ? "\033[0m" : ""));
        blanks.clear();
      }
      append(blanks, s.substr(end));
      if (columns[i].left) blanks += blank;
      blanks += ' ';
    }
    out += '\n';
  };
  line([](const Column& c) { return Cell{c.head, "\033[1m"}; });
  for (std::size_t i = 0; i < lines; ++i) line([i](const Column& c) { return c.cells[i]; });
  return out;
}

// ---- totals ----------------------------------------------------------------------------------

inline std::string percent(double part) { return format("%.1f %%", 100 * part); }

inline std::string totals(const Profile& p) {
  const auto us = [](double seconds) { return format("%12.1f us", seconds * 1e6); };
  std::string s = "sum_layers  " + us(p.sum_layers.mean);
  append(s, format("   kernels %.1f, waiting %.1f\n", p.compute.mean * 1e6,
                   (p.sum_layers.mean - p.compute.mean) * 1e6));
  append(s, "end_to_end  " + us(p.end_to_end.mean));
  append(s, text("   mean of ", p.steps, p.steps == 1 ? " step" : " steps"));
  if (p.ranks > 1) append(s, text(" on ", p.ranks, " ranks"));
  append(s, format("\nunaccounted %12.1f %%\n", 100 * p.unaccounted()));
  if (!has_ceilings(p)) return s;
  double wasted = 0;
  for (const ProfileRow& r : p.rows) wasted += roof(p, r).wasted;
  append(s, text("wasted      ", us(wasted)));
  if (p.end_to_end.mean > 0)
    append(s, text("   ", percent(wasted / p.end_to_end.mean), " of the step"));
  return s + '\n';
}

/// Where the step's time goes to beside the layers' own work.
inline std::string communication(const Profile& p) {
  std::string s;
  double comm = 0, exposed = 0, late = 0, transfer = 0, beside = 0, alone = 0;
  for (const ProfileRow& r : p.rows) {
    comm += r.comm.mean;
    exposed += r.exposed.mean, late += r.late.mean, transfer += r.transfer.mean;
    if (r.alone.mean > 0) beside += r.time.mean, alone += r.alone.mean;
  }
  if (comm > 0)
    append(s, format("communication %.1f us, %.1f %% of it behind kernels\n", comm * 1e6,
                     100 * detail::hidden(comm, late, transfer) / comm));
  if (exposed > 0)
    append(s, format("waiting %.1f us: for late ranks %.1f, transfer %.1f, handing over and waking "
                     "up %.1f\n",
                     exposed * 1e6, late * 1e6, transfer * 1e6,
                     std::max(0.0, exposed - late - transfer) * 1e6));
  if (p.clock_error > 0)
    append(s, format("the hosts' clocks were compared to within %.1f us\n", p.clock_error * 1e6));
  if (alone > 0)
    append(s, format("beside communication kernels take %.1f us, alone %.1f: ", beside * 1e6,
                     alone * 1e6) +
                  (beside > alone ? format("%.3f times as long\n", beside / alone)
                                  : std::string("no longer\n")));
  if (p.ranks > 1)
    append(s, format("slowest rank %d: kernels %.1f us, imbalance %.3f (max / mean)\n",
                     p.compute.slowest, p.compute.max * 1e6, p.compute.imbalance()));
  if (p.clean.mean > 0)
    append(s, text("recorded steps took ", percent(std::abs(p.overhead)),
                   p.overhead < 0 ? " less than" : " longer than", " clean ones\n"));
  return s;
}

/// What the ranks had of the processors, and what that says about all times above.
inline std::string processors(const Profile& p) {
  const ProcessorUse& use = p.processor;
  if (use.time.max <= 0) return "";
  const double step = p.end_to_end.mean;
  std::string s =
      format("processor time %.1f us, %.2f of the step; %.1f involuntary switches",
             use.time.mean * 1e6, step > 0 ? use.time.mean / step : 0, use.switches.mean);
  append(s, p.ranks > 1 ? " per rank\n" : "\n");
  if (!p.disturbed()) return s;
  append(s, "DISTURBED, so that times are too long: ");
  append(s, format("rank %d was ready but had no processor for %.1f us, ", use.denied.slowest,
                   use.denied.max * 1e6) +
                percent(step > 0 ? use.denied.max / step : 0) + " of the step");
  if (use.stolen > 0)
    append(s, "; of the machine's processors its host gave away " + percent(use.stolen));
  return s + '\n';
}

inline std::string ceilings(const Profile& p) {
  const Machine& m = *p.machine;
  return text(
      format("peak %.1f GFLOP/s ", m.peak(p.arithmetic) / 1e9), name(p.arithmetic),
      format(" FMA, memory %.1f GB/s (", m.bandwidth() / 1e9), m.threads,
      m.threads == 1 ? " thread" : " threads", m.ranks > 1 ? ", all ranks at once" : "", ")\n",
      m.disturbed(p.arithmetic) ? "DISTURBED when they were measured: roofs may be too low\n" : "");
}

/// A line for each kind of reason (what stands before its colon), with the worst row as an example.
inline std::string above_roofs(const Profile& p) {
  struct Case {
    std::string kind;
    int rows;
    double worst;
    std::string example, reason;
  };
  std::vector<Case> cases;
  for (const ProfileRow& r : p.rows) {
    const Roof it = roof(p, r);
    if (!it.above) continue;
    const std::string kind = it.reason.substr(0, it.reason.find(':'));
    auto c = std::find_if(cases.begin(), cases.end(),
                          [&](const Case& known) { return known.kind == kind; });
    if (c == cases.end()) c = cases.insert(c, {kind, 0, 0, "", ""});
    ++c->rows;
    if (it.fraction > c->worst)
      *c = {kind, c->rows, it.fraction, text(r.name, ' ', name(r.pass)), it.reason};
  }
  std::string s;
  for (const Case& c : cases) {
    append(s, text("^ above the roof: "));
    if (c.rows > 1) append(s, text(c.rows, " rows, most of all "));
    append(s, text(c.example, format(" (%.0f %%)", 100 * c.worst)));
    append(s, c.reason.empty() ? std::string(", unexplained\n") : text("; ", c.reason, '\n'));
  }
  return s;
}

}  // namespace detail::profile_table

LAMINA_INLINE TableOptions::Sort parse_sort(std::string_view name) {
  if (name == "order") return TableOptions::Sort::order;
  if (name == "time") return TableOptions::Sort::time;
  if (name == "wasted") return TableOptions::Sort::wasted;
  if (name == "name") return TableOptions::Sort::name;
  throw Error(text("sort '", name, "' is not known: expected order, time, wasted or name"));
}

LAMINA_INLINE TableOptions::Group parse_group(std::string_view name) {
  if (name == "layer") return TableOptions::Group::layer;
  if (name == "type") return TableOptions::Group::type;
  if (name == "stage") return TableOptions::Group::stage;
  throw Error(text("group '", name, "' is not known: expected layer, type or stage"));
}

LAMINA_INLINE std::string table(const Profile& profile, const TableOptions& options) {
  const auto lines = detail::profile_table::choose(profile, options);
  auto columns = detail::columns_of(profile, lines, options);
  const auto widths = detail::profile_table::fit(columns, options);
  std::string footer = detail::profile_table::totals(profile) +
                       detail::profile_table::communication(profile) +
                       detail::profile_table::processors(profile);
  if (has_ceilings(profile))
    append(footer,
           detail::profile_table::ceilings(profile) + detail::profile_table::above_roofs(profile));
  append(footer, "bytes: compulsory, each operand once; 1 FMA = 2 FLOP\n");
  const auto width = std::size_t(std::max(options.width, 40));
  return detail::profile_table::grid(columns, widths, lines.size(), options.colour) +
         (options.wide ? footer : detail::wrap(footer, width, "  "));
}

}  // namespace lamina
