// What a plan does and sends, as lines for people.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/plan/detail/text_table.hpp>
#include <lamina/plan/plan.hpp>

#include <algorithm>
#include <array>

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

/// How many bytes of its gradients are sent, for one that they have.
inline double sent_per_gradient(const Step& step, const PlaceOptions& placing) {
  for (const Parameter* p : step.parameters())
    if (p->bucket && p->bucket->ranks.narrows())
      return double(size_of(*placing.sent_gradients)) / double(size_of(placing.dtype.gradients));
  return 1;
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
    bool has_dx = false;  // what it adds is none of its own
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      has_dx |= !step.adds(i) && net.steps()[std::size_t(step.inputs[i])].needs_grad;
    Row& row = rows[std::size_t(step.vertex)];
    const bool own = step.name == row.first;  // not inserted before it
    if (own && step.recomputed) row.cells[2] = "yes";
    for (const Message& m : cost.messages) {
      const int ranks = step.split().ways(m.axes);
      if (ranks == 1 || m.bytes == 0 || (!has_dx && m.pass == Pass::input_grad)) continue;
      // Gradients are summed once in a step, all else goes with each micro-batch.
      const int turns = m.pass == Pass::weight_grad ? 1 : net.placing().turns();
      const auto send = [&](Pass pass, Collective op, double times = 1) {
        row.add(text(short_name(pass), ' ', reshard ? "reshard" : name(op), '(', ranks, ')'),
                turns * times * m.bytes);
      };
      if (shard && m.pass == Pass::weight_grad) {  // a bucket, in two halves: see Bucket
        send(m.pass, Collective::reduce_scatter, sent_per_gradient(step, net.placing()));
        send(Pass::update, Collective::all_gather, value_per_gradient(step, net.placing().dtype));
        continue;
      }
      send(m.pass, m.op, m.pass == Pass::weight_grad ? sent_per_gradient(step, net.placing()) : 1);
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

using text_table::Cell, text_table::words;

inline Cell messages_of(const Row& row) {
  Cell cell;
  for (const Sent& s : row.sent)
    cell.push_back(text(s.what, ' ', amount(s.bytes), &s == &row.sent.back() ? "" : ","));
  return cell;
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
  return detail::text_table::layout(table, options.wide ? detail::text_table::unlimited
                                                        : std::size_t(std::max(options.width, 40)));
}

}  // namespace lamina
