// Predictions, as lines for people.
#pragma once

#include <lamina/base/detail/wrap.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/text_table.hpp>
#include <lamina/plan/prediction.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace lamina {

namespace detail::prediction_table {

using text_table::Cell;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Columns of numbers, by head: a number of each row, or "" where there is none. They stand below
/// each other by their ends.
struct Numbers {
  std::string head;
  std::vector<std::string> cells;
};

using Rows = std::vector<std::vector<Cell>>;

/// Adds a column to the rows, of which the first is the head.
inline void add(Rows& rows, const Numbers& numbers) {
  std::size_t width = numbers.head.size();
  for (const std::string& s : numbers.cells) width = std::max(width, s.size());
  const auto aligned = [&](const std::string& s) {
    return Cell{std::string(width - s.size(), ' ') + s};
  };
  rows[0].push_back(aligned(numbers.head));
  for (std::size_t i = 0; i < numbers.cells.size(); ++i)
    rows[i + 1].push_back(aligned(numbers.cells[i].empty() ? "-" : numbers.cells[i]));
}

inline std::string laid_out(const Rows& rows, const PlanTableOptions& options) {
  return text_table::layout(
      rows, options.wide ? text_table::unlimited : std::size_t(std::max(options.width, 40)));
}

inline std::string folded(const std::string& lines, const PlanTableOptions& options) {
  return options.wide ? lines : wrap(lines, std::size_t(std::max(options.width, 40)), "  ");
}

/// Milliseconds with the digits that a step of so many seconds has room for.
struct Milliseconds {
  int decimals = 3;
  explicit Milliseconds(double step) {
    const double ms = step * 1e3;
    decimals = ms >= 1000 ? 1 : ms >= 100 ? 2 : ms >= 10 ? 3 : ms >= 1 ? 4 : 5;
  }
  std::string operator()(double seconds) const {
    return std::isfinite(seconds) ? format("%.*f", decimals, seconds * 1e3) : "";
  }
  /// Nothing for what does not happen.
  std::string some(double seconds) const { return seconds > 0 ? (*this)(seconds) : ""; }
};

inline std::string rate(double images_per_second) {
  if (!(images_per_second > 0) || !std::isfinite(images_per_second)) return "";
  return format("%.*f", images_per_second >= 1000 ? 0 : 1, images_per_second);
}
inline std::string times(double x) { return x > 0 && std::isfinite(x) ? format("%.3f", x) : ""; }
inline std::string megabytes(double bytes) { return format("%.1f", bytes / 1e6); }

inline std::string devices_text(int n) { return text(n, n == 1 ? " device" : " devices"); }

// ---- components ------------------------------------------------------------------------------

struct Component {
  const char* head;
  double (*of)(const PredictedLayer&);
};
inline double waiting(const PredictedLayer& l) { return l.seconds() - l.kernel_seconds(); }
inline constexpr Component components[] = {
    {"kernels", [](const PredictedLayer& l) { return l.kernel_seconds(); }},
    {"collectives", [](const PredictedLayer& l) { return l.collectives; }},
    {"halo", [](const PredictedLayer& l) { return l.halo; }},
    {"redistribution", [](const PredictedLayer& l) { return l.redistribution; }},
    {"gradients", [](const PredictedLayer& l) { return l.gradients; }}};

/// Those that some of the layers have; kernels and waiting where `room` columns cannot hold them.
inline std::vector<Component> components_of(const std::vector<PredictedLayer>& layers,
                                            std::size_t room) {
  std::vector<Component> some;
  std::size_t width = 0;
  for (const Component& c : components)
    if (&c == components || std::ranges::any_of(layers, [&](auto& l) { return c.of(l) > 0; })) {
      some.push_back(c);
      width += std::max<std::size_t>(9, std::string_view(c.head).size() + 2);
    }
  if (width > room && some.size() > 2) some = {components[0], {"waiting", waiting}};
  return some;
}

inline void add_components(Rows& rows, const std::vector<PredictedLayer>& of, std::size_t room,
                           const Milliseconds& ms) {
  for (const Component& c : components_of(of, room)) {
    Numbers column{c.head, {}};
    for (const PredictedLayer& l : of) column.cells.push_back(ms.some(c.of(l)));
    add(rows, column);
  }
}

// ---- layers ----------------------------------------------------------------------------------

/// Neighbours with one split.
struct Row {
  std::string first, last;
  int layers = 1;
  PredictedLayer sum;  ///< with their split
  double data = infinity;
  RunnerUp next;
  std::string next_of;  ///< which of the layers

  Cell name() const {
    if (layers == 1) return {first};
    return {first + " ..", last, text('(', layers, " layers)")};
  }
  void add(const Row& o) {
    last = o.last, layers += o.layers, data += o.data;
    PredictedStep both;
    both.layers = {sum, o.sum};
    const Split split = sum.split;
    sum = both.total(), sum.split = split;
    if (o.next.seconds < next.seconds) next = o.next, next_of = o.next_of;
  }
  Cell runner_up(const Milliseconds& ms) const {
    if (!std::isfinite(next.seconds)) return {};
    Cell cell = {next.split.text(), (next.seconds < 0 ? "" : "+") + ms(next.seconds)};
    if (layers > 1) cell.push_back(text('(', next_of, ')'));
    return cell;
  }
};

inline std::vector<Row> rows_of(const Prediction& p, bool wide) {
  const PredictedPlan* data = p.plan("data");
  std::vector<Row> rows;
  const auto& layers = p.best().step.layers;
  for (std::size_t v = 1; v < layers.size(); ++v) {
    Row row{.first = layers[v].name,
            .last = layers[v].name,
            .sum = layers[v],
            .data = data ? data->step.layers[v].seconds() : infinity,
            .next = p.runners_up[v],
            .next_of = layers[v].name};
    if (!wide && !rows.empty() && rows.back().sum.split == row.sum.split)
      rows.back().add(row);
    else
      rows.push_back(std::move(row));
  }
  return rows;
}

// ---- plans -----------------------------------------------------------------------------------

/// Which plan is the answer, in a sentence.
inline std::string verdict(const Prediction& p) {
  const PredictedPlan &best = p.best(), *data = p.plan("data");
  if (!data) return "Data-parallel is not possible here.\n";
  if (!data->fits) return "Data-parallel does not fit into memory; auto does.\n";
  const double faster = data->step.seconds / best.step.seconds;
  if (best.splits == data->splits)
    return "Data-parallel is the answer: no plan that was tried makes a shorter step.\n";
  if (faster < 1.0005)
    return "Data-parallel is the answer: no plan that was tried is 0.1 % faster.\n";
  std::string same;
  for (const PredictedPlan& plan : p.plans)
    if (&plan != &best && plan.splits == best.splits) same = text(", which is ", plan.name, ',');
  return text("auto", same, " is ", format("%.1f", 100 * (faster - 1)),
              " % faster than data-parallel.\n");
}

// ---- scaling ---------------------------------------------------------------------------------

/// Images/s of a device on the fewest devices on which a plan fits; 0 where none does.
inline double base_of(const std::vector<ScalingPoint>& points) {
  for (const ScalingPoint& p : points)
    if (std::isfinite(p.best)) return p.images_per_second(p.best) / p.devices;
  return 0;
}

/// The most devices on which there is such a time; 0: there is none.
inline int most_with(const std::vector<ScalingPoint>& points, double ScalingPoint::*seconds) {
  int most = 0;
  for (const ScalingPoint& p : points)
    if (std::isfinite(p.*seconds)) most = p.devices;
  return most;
}

inline std::string turns(const std::vector<ScalingPoint>& points) {
  const TurningPoints t = turning_points(points);
  const int data = most_with(points, &ScalingPoint::data);
  const int best = most_with(points, &ScalingPoint::best);
  std::string s;
  if (best == 0) {
    s = "No plan is possible, or fits, on any of these numbers of devices.\n";
  } else if (data == 0) {
    s = "Data-parallel is not possible, or does not fit, on any of these numbers of devices.\n";
  } else {
    s = t.fastest > 0 ? text("Data-parallel gets no faster beyond ", devices_text(t.fastest), "; ")
                      : text("Data-parallel gets faster up to ", devices_text(data), "; ");
    append(s, t.overtaken > 0
                  ? text("auto is more than 5 % faster from ", devices_text(t.overtaken), " on.\n")
                  : text("auto is at most 5 % faster on ", devices_text(best), ".\n"));
  }
  for (const ScalingPoint& p : points)
    if (!p.reason.empty()) append(s, text("On ", devices_text(p.devices), ": ", p.reason, '\n'));
  return s;
}

}  // namespace detail::prediction_table

LAMINA_INLINE std::vector<std::string> prediction_remarks(const Prediction& p) {
  namespace d = detail::prediction_table;
  std::vector<std::string> lines = {
      text("cluster ", p.cluster, ", ", d::devices_text(p.devices), ": ", p.device),
      text("model ", p.model, ", ", p.dtype, ", global batch ", p.batch, ", ",
           format("%g", double(p.batch) / p.devices), " per device",
           p.micro_batches > 1
               ? text(", in ", p.micro_batches, " micro-batches of ", p.batch / p.micro_batches)
               : std::string())};
  if (p.batch / p.micro_batches < p.devices)
    lines.push_back(text("fewer samples at once than devices: data-parallel leaves ",
                         p.devices - p.batch / p.micro_batches, " of them idle"));
  lines.push_back(text("searcher ", p.searcher, ", ", p.steps_tried, " steps tried"));
  lines.push_back(
      text("bought so that it fits: ", p.bought.empty() ? "nothing" : in_words(p.bought)));
  if (p.data_bought != p.bought && p.plan("data") && p.plan("data")->fits)
    lines.push_back(text("bought so that data-parallel fits: ", in_words(p.data_bought)));
  const Memory& m = p.best().memory;
  lines.push_back(
      format("memory of the fullest device, MB: %.1f of %.1f (parameters %.1f, gradients %.1f, "
             "optimizer %.1f, activations %.1f, workspace %.1f, messages %.1f)",
             double(m.total()) / 1e6, p.device_memory / 1e6, double(m.parameters) / 1e6,
             double(m.gradients) / 1e6, double(m.optimizer) / 1e6, double(m.activations) / 1e6,
             double(m.workspace) / 1e6, double(m.messages) / 1e6));
  return lines;
}

LAMINA_INLINE std::string layer_table(const Prediction& p, const PlanTableOptions& options) {
  namespace d = detail::prediction_table;
  check(p.runners_up.size() == p.best().step.layers.size(),
        "the table of a prediction needs a runner-up of each layer");
  auto rows = d::rows_of(p, options.wide);
  d::Row step{
      .first = "step", .last = "step", .sum = p.best().step.total(), .next = {}, .next_of = {}};
  if (const PredictedPlan* data = p.plan("data")) step.data = data->step.seconds;
  rows.push_back(std::move(step));
  const d::Milliseconds ms(p.best().step.seconds);
  d::Rows table = {{{"layer"}, {"split"}}};
  std::vector<PredictedLayer> sums;
  for (const d::Row& row : rows) {
    const bool all = &row == &rows.back();
    table.push_back({row.name(), all ? d::Cell{} : d::Cell{row.sum.split.text()}});
    sums.push_back(row.sum);
  }
  const int room = options.wide ? 1 << 20 : std::max(options.width, 40) - 60;
  d::add_components(table, sums, std::size_t(std::max(room, 0)), ms);
  d::Numbers total{"ms", {}}, data{"data ms", {}};
  for (const d::Row& row : rows)
    total.cells.push_back(ms(row.sum.seconds())), data.cells.push_back(ms(row.data));
  d::add(table, total), d::add(table, data);
  table[0].push_back(detail::text_table::words("runner-up, ms"));
  for (std::size_t i = 0; i < rows.size(); ++i) table[i + 1].push_back(rows[i].runner_up(ms));
  return d::laid_out(table, options);
}

LAMINA_INLINE std::string plans_table(const Prediction& p, const PlanTableOptions& options) {
  namespace d = detail::prediction_table;
  const d::Milliseconds ms(p.best().step.seconds);
  const PredictedPlan* data = p.plan("data");
  d::Rows table = {{{"plan"}}};
  std::vector<PredictedLayer> sums;
  d::Numbers step{"ms", {}}, speed{"images/s", {}}, memory{"MB", {}}, faster{"x data", {}};
  for (const PredictedPlan& plan : p.plans) {
    table.push_back({{plan.name}});
    sums.push_back(plan.step.total());
    step.cells.push_back(ms(plan.step.seconds));
    speed.cells.push_back(d::rate(double(p.batch) / plan.step.seconds));
    memory.cells.push_back(d::megabytes(double(plan.memory.total())));
    faster.cells.push_back(data ? d::times(data->step.seconds / plan.step.seconds) : "");
  }
  d::add(table, step), d::add(table, speed), d::add(table, faster);
  const int room = options.wide ? 1 << 20 : std::max(options.width, 40) - 52;
  d::add_components(table, sums, std::size_t(std::max(room, 0)), ms);
  d::add(table, memory);
  if (std::ranges::any_of(p.plans, [](const PredictedPlan& plan) { return !plan.fits; })) {
    table[0].push_back({"memory"});
    for (std::size_t i = 0; i < p.plans.size(); ++i)
      table[i + 1].push_back({p.plans[i].fits ? "fits" : "does not fit"});
  }
  std::vector<std::string_view> missing = plan_names();
  std::erase_if(missing, [&](std::string_view name) { return p.plan(name) != nullptr; });
  return d::laid_out(table, options) +
         d::folded((missing.empty() ? "" : text("Not possible here: ", in_words(missing), ".\n")) +
                       d::verdict(p),
                   options);
}

LAMINA_INLINE std::string scaling_table(const std::vector<ScalingPoint>& points,
                                        const PlanTableOptions& options) {
  namespace d = detail::prediction_table;
  check(!points.empty(), "a table of scaling needs points");
  const double base = d::base_of(points);
  d::Rows table(points.size() + 1);
  d::Numbers devices{"devices", {}}, batch{"batch", {}}, data{"data img/s", {}},
      data_part{"eff.", {}}, best{"auto img/s", {}}, best_part{"eff.", {}}, faster{"x data", {}};
  std::vector<d::Cell> bought = {{"bought"}};
  bool buys = false;
  for (const ScalingPoint& p : points) {
    const auto part = [&](double seconds) {
      return std::isfinite(seconds)
                 ? format("%.1f %%", 100 * p.images_per_second(seconds) / p.devices / base)
                 : std::string();
    };
    devices.cells.push_back(text(p.devices)), batch.cells.push_back(text(p.batch));
    data.cells.push_back(d::rate(p.images_per_second(p.data))),
        data_part.cells.push_back(part(p.data));
    best.cells.push_back(d::rate(p.images_per_second(p.best))),
        best_part.cells.push_back(part(p.best));
    faster.cells.push_back(std::isfinite(p.data) ? d::times(p.data / p.best) : "");
    buys = buys || !p.bought.empty();
    bought.push_back(detail::text_table::words(in_words(p.bought)));
  }
  for (const d::Numbers* n : {&devices, &batch, &data, &data_part, &best, &best_part, &faster})
    d::add(table, *n);
  for (std::size_t i = 0; buys && i < table.size(); ++i) table[i].push_back(bought[i]);
  return d::laid_out(table, options) + d::folded(d::turns(points), options);
}

LAMINA_INLINE std::string sweep_table(const std::vector<ScalingPoint>& points) {
  namespace d = detail::prediction_table;
  check(!points.empty(), "a table of a sweep needs points");
  std::vector<int> devices;
  std::vector<std::int64_t> batches;
  for (const ScalingPoint& p : points) {
    if (std::ranges::find(devices, p.devices) == devices.end()) devices.push_back(p.devices);
    if (std::ranges::find(batches, p.batch) == batches.end()) batches.push_back(p.batch);
  }
  d::Rows table(devices.size() + 1);
  d::Numbers first{"devices", {}};
  for (const int n : devices) first.cells.push_back(text(n));
  d::add(table, first);
  for (const std::int64_t b : batches) {
    d::Numbers column{text("batch ", b), {}};
    for (const int n : devices) {
      const auto at = std::ranges::find_if(
          points, [&](const ScalingPoint& p) { return p.devices == n && p.batch == b; });
      const bool there = at != points.end() && std::isfinite(at->best);
      const bool both = there && std::isfinite(at->data);
      column.cells.push_back(!there ? ""
                                    : d::rate(at->images_per_second(at->best)) +
                                          (both ? format(" (%.2f)", at->data / at->best) : " (-)"));
    }
    d::add(table, column);
  }
  return "images/s of auto (times data-parallel's)\n" + d::laid_out(table, {.wide = true});
}

}  // namespace lamina
