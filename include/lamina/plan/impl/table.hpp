// What a plan does and sends, as lines for people.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/plan/plan.hpp>

#include <algorithm>
#include <array>
#include <numeric>

namespace lamina {

namespace detail::plan_table {

/// Messages of one kind, added up.
struct Sent {
  std::string what;  // "dw all_reduce(4)"
  double bytes = 0;
};

struct Row {
  std::string first, last;  // layers
  int layers = 1;
  std::array<std::string, 4> cells;  // requested, used, recompute, reason
  std::vector<Sent> sent;

  void add(const std::string& what, double bytes) {
    const auto same = std::ranges::find(sent, what, &Sent::what);
    if (same == sent.end())
      sent.push_back({what, bytes});
    else
      same->bytes += bytes;
  }
  std::vector<std::string> name() const {
    if (layers == 1) return {first};
    return {first + " ..", last, text('(', layers, " layers)")};
  }
};

inline std::string_view short_name(Pass pass) {
  constexpr std::string_view names[pass_count] = {"fwd", "dx", "dw", "update", "again"};
  return names[int(pass)];
}

inline std::string amount(double bytes) {
  return bytes >= 1e6   ? format("%.2f MB", bytes / 1e6)
         : bytes >= 1e3 ? format("%.2f kB", bytes / 1e3)
                        : format("%.0f B", bytes);
}

/// How many bytes a value of a step's parameters has for one of its gradient.
inline double value_per_gradient(const Step& step, const Precision& precision) {
  DType value = precision.weights;
  for (const Parameter* p : step.parameters())
    if (p->trained) value = p->form.dtype;
  return double(size_of(value)) / double(size_of(precision.gradients));
}

inline std::vector<Row> rows_of(const std::vector<Decision>& decisions, const PlacedNetwork& net) {
  std::vector<Row> rows;
  for (const Decision& d : decisions)
    rows.push_back({d.layer,
                    d.layer,
                    1,
                    {d.requested.text(), d.used.text(), d.recompute ? "no need" : "", d.reason},
                    {}});
  const bool shard = net.placing().shard_optimizer;
  for (const Step& step : net.steps()) {
    if (!step.layer) continue;
    const bool reshard = step.kind == Step::Kind::reshard;
    const Cost cost = step.cost(net.placing().dtype);
    const bool has_dx = std::ranges::any_of(
        step.inputs, [&](int i) { return net.steps()[std::size_t(i)].needs_grad; });
    Row& row = rows[std::size_t(step.vertex)];
    const bool own = step.name == row.first;  // not inserted before it
    if (own && step.recomputed) row.cells[2] = "yes";
    for (const Message& m : cost.messages) {
      const int ranks = step.split().ways(m.axes);
      if (ranks == 1 || m.bytes == 0 || (!has_dx && m.pass == Pass::input_grad)) continue;
      const auto send = [&](Pass pass, Collective op, double times = 1) {
        row.add(text(short_name(pass), ' ', reshard ? "reshard" : name(op), '(', ranks, ')'),
                times * m.bytes);
      };
      if (shard && m.pass == Pass::weight_grad) {  // a bucket, in two halves: see Bucket
        send(m.pass, Collective::reduce_scatter);
        send(Pass::update, Collective::all_gather, value_per_gradient(step, net.placing().dtype));
        continue;
      }
      send(m.pass, m.op);
      if (step.recomputed && m.pass == Pass::forward && !m.once) send(Pass::recompute, m.op);
    }
  }
  rows.erase(rows.begin());  // the input
  return rows;
}

inline std::vector<Row> folded(const std::vector<Row>& rows) {
  std::vector<Row> some;
  for (const Row& row : rows) {
    if (some.empty() || some.back().cells != row.cells) {
      some.push_back(row);
      continue;
    }
    some.back().last = row.last, ++some.back().layers;
    for (const Sent& s : row.sent) some.back().add(s.what, s.bytes);
  }
  return some;
}

/// Goes on in the next line only between its words, or messages.
using Cell = std::vector<std::string>;

inline Cell words(std::string_view s) {
  Cell cell;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t end = std::min(s.find(' ', at), s.size());
    cell.emplace_back(s.substr(at, end - at));
    at = end + 1;
  }
  return cell;
}

inline Cell messages_of(const Row& row) {
  Cell cell;
  for (const Sent& s : row.sent)
    cell.push_back(text(s.what, ' ', amount(s.bytes), &s == &row.sent.back() ? "" : ","));
  return cell;
}

inline constexpr std::size_t unlimited = std::size_t(1) << 30;

inline std::vector<std::string> wrap(const Cell& cell, std::size_t width) {
  std::vector<std::string> lines = {""};
  for (const std::string& word : cell) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    append(lines.back(), text(lines.back().empty() ? "" : " ", word));
  }
  return lines;
}

/// The first cells of a row side by side, as many as fit when they are wrapped; those beyond them
/// below, where they say anything.
inline std::string layout(const std::vector<std::vector<Cell>>& rows, std::size_t limit) {
  constexpr std::size_t fair = 24, gap = 2, indent = 4;
  std::vector<std::size_t> widths, least;  // by column, the gap included
  for (std::size_t c = 0; c < rows[0].size(); ++c) {
    std::size_t width = 0, word = 0;
    for (const auto& row : rows) {
      width = std::max(width, wrap(row[c], unlimited)[0].size());
      for (const std::string& w : row[c]) word = std::max(word, w.size());
    }
    widths.push_back(gap + width), least.push_back(gap + std::max(word, std::min(width, fair)));
  }
  const auto sum = [](const auto& of, std::size_t columns) {
    return std::accumulate(of.begin(), of.begin() + std::ptrdiff_t(columns), std::size_t(0));
  };
  const std::size_t room = limit + gap;  // there is none behind the last one
  std::size_t beside = widths.size();
  while (beside > 3 && sum(least, beside) > room) --beside;
  for (std::size_t c = beside; c-- > 0;) {  // the last ones give way first
    const std::size_t others = sum(widths, beside) - widths[c];
    widths[c] = std::clamp(room - std::min(room, others), least[c], widths[c]);
  }
  std::string table;
  for (const auto& row : rows) {
    std::vector<std::string> lines;
    for (std::size_t c = 0; c < beside; ++c) {
      const auto cell = wrap(row[c].empty() ? Cell{"-"} : row[c], widths[c] - gap);
      if (cell.size() > lines.size()) lines.resize(cell.size());
      for (std::size_t i = 0; i < cell.size(); ++i) {
        lines[i].resize(sum(widths, c), ' ');
        append(lines[i], cell[i]);
      }
    }
    for (std::size_t c = beside; c < row.size(); ++c)
      for (const std::string& line : wrap(row[c], limit - indent))
        if (!line.empty()) lines.push_back(std::string(indent, ' ') + line);
    for (const std::string& line : lines) append(table, line + '\n');
  }
  return table;
}

}  // namespace detail::plan_table

LAMINA_INLINE std::string plan_table(const std::vector<Decision>& decisions,
                                     const PlacedNetwork& net, const PlanTableOptions& options) {
  check(!net.steps().empty() && decisions.size() == net.network().graph().size(),
        "the table of a plan needs a network that is prepared by it");
  auto rows = detail::plan_table::rows_of(decisions, net);
  if (!options.wide) rows = detail::plan_table::folded(rows);
  std::vector<std::vector<detail::plan_table::Cell>> table = {
      {{"layer"},
       {"requested"},
       {"used"},
       {"recompute"},
       {"reason"},
       detail::plan_table::words("sends per step: pass, operation(ranks), bytes")}};
  for (const detail::plan_table::Row& row : rows) {
    table.push_back({row.name()});
    for (const std::string& cell : row.cells)
      table.back().push_back(detail::plan_table::words(cell));
    table.back().push_back(detail::plan_table::messages_of(row));
  }
  if (std::ranges::none_of(decisions, &Decision::recompute))
    for (auto& row : table) row.erase(row.begin() + 3);
  return detail::plan_table::layout(table, options.wide ? detail::plan_table::unlimited
                                                        : std::size_t(std::max(options.width, 40)));
}

}  // namespace lamina
