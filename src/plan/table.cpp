// What a plan does and sends, as lines for people.
#include <lamina/plan/plan.hpp>

#include <algorithm>
#include <array>

namespace lamina {

namespace {

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
  std::string name() const {
    return layers == 1 ? first : text(first, " .. ", last, " (", layers, " layers)");
  }
};

std::string_view short_name(Pass pass) {
  constexpr std::string_view names[pass_count] = {"fwd", "dx", "dw", "update", "again"};
  return names[int(pass)];
}

std::string amount(double bytes) {
  return bytes >= 1e6   ? format("%.2f MB", bytes / 1e6)
         : bytes >= 1e3 ? format("%.2f kB", bytes / 1e3)
                        : format("%.0f B", bytes);
}

std::vector<Row> rows_of(const std::vector<Decision>& decisions, const Network& net) {
  std::vector<Row> rows;
  for (const Decision& d : decisions)
    rows.push_back({d.layer,
                    d.layer,
                    1,
                    {d.requested.text(), d.used.text(), d.recompute ? "no need" : "", d.reason},
                    {}});
  for (const Step& step : net.steps()) {
    if (!step.layer) continue;
    const bool reshard = step.layer->type() == "Reshard";
    const Cost cost = step.layer->cost(step.input_shapes, step.output.split, net.placing().dtype);
    const bool has_dx = std::ranges::any_of(
        step.inputs, [&](int i) { return net.steps()[std::size_t(i)].needs_grad; });
    Row& row = rows[std::size_t(step.vertex)];
    const bool own = step.name == row.first;  // not inserted before it
    if (own && step.recomputed) row.cells[2] = "yes";
    for (const Message& m : cost.messages) {
      if (m.ranks == 1 || m.bytes == 0 || (!has_dx && m.pass == Pass::input_grad)) continue;
      const auto send = [&](Pass pass) {
        row.add(text(short_name(pass), ' ', reshard ? "reshard" : name(m.op), '(', m.ranks, ')'),
                m.bytes);
      };
      send(m.pass);
      if (step.recomputed && m.pass == Pass::forward && !m.once) send(Pass::recompute);
    }
  }
  rows.erase(rows.begin());  // the input
  return rows;
}

std::vector<Row> folded(const std::vector<Row>& rows) {
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

}  // namespace

std::string plan_table(const std::vector<Decision>& decisions, const Network& net, bool wide) {
  check(net.placed() && decisions.size() == net.graph().size(),
        "the table of a plan needs a network that is placed by it");
  auto rows = rows_of(decisions, net);
  std::vector<std::vector<std::string>> lines = {{"layer", "requested", "used", "recompute",
                                                  "reason",
                                                  "sends per step: pass, operation(ranks), bytes"}};
  if (!wide) rows = folded(rows);
  for (const Row& row : rows) {
    std::string sends;
    for (const Sent& s : row.sent)
      append(sends, text(sends.empty() ? "" : ", ", s.what, ' ', amount(s.bytes)));
    lines.push_back({row.name()});
    for (const std::string& cell : row.cells) lines.back().push_back(cell.empty() ? "-" : cell);
    lines.back().push_back(sends.empty() ? "-" : sends);
  }
  if (std::ranges::none_of(decisions, &Decision::recompute))
    for (auto& line : lines) line.erase(line.begin() + 3);
  std::string table;
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      std::size_t width = 0;
      for (const auto& other : lines) width = std::max(width, other[c].size());
      append(table, line[c]);
      append(table, c + 1 < line.size() ? std::string(width - line[c].size() + 2, ' ') : "\n");
    }
  }
  return table;
}

}  // namespace lamina
