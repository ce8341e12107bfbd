// Which splits one can choose among, and what they cost together.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/step_parts.hpp>

#include <algorithm>
#include <numeric>

namespace lamina {

namespace detail::candidates {

inline std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

/// All that have `ranks` parts: along samples, rows, columns, and output or input channels.
inline std::vector<Split> of(int ranks, Axis axes) {
  std::vector<Split> all;
  const auto ways = [&](int n, Axis axis) {
    return contains(axes, axis) ? divisors(n) : std::vector<int>{1};
  };
  for (const int h : ways(ranks, Axis::height))
    for (const int w : ways(ranks / h, Axis::width))
      for (const int c : ways(ranks / h / w, Axis::channel))
        for (const int i : ways(ranks / h / w / c, Axis::input))
          all.push_back(
              {.batch = ranks / h / w / c / i, .channel = c, .input = i, .height = h, .width = w});
  return all;
}

/// By what it takes alone.
inline double alone(const OptionCost& o) {
  return o.kernels.forward + o.sum + o.kernels.input_grad + o.kernels.weight_grad +
         o.kernels.update + o.forward.halo + o.forward.others + o.backward.halo + o.backward.others;
}

/// These, and those over fewer ranks along one axis.
inline std::vector<Split> worth_a_try(int ranks, Axis axes) {
  std::vector<Split> all = of(ranks, axes);
  for (const int fewer : divisors(ranks)) {
    if (fewer == ranks) continue;
    all.push_back({.batch = fewer});
    if (fewer == 1) continue;
    all.push_back({.channel = fewer}), all.push_back({.input = fewer});
    all.push_back({.height = fewer});
  }
  return all;
}

/// Which of these are the first one and the quickest others, `most` in all.
inline std::vector<bool> quickest(const std::vector<double>& seconds, std::size_t most) {
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order.begin() + 1, order.end(), {},
                           [&](std::size_t i) { return seconds[i]; });
  std::vector<bool> kept(seconds.size(), false);
  for (std::size_t i = 0; i < std::min(most, order.size()); ++i) kept[order[i]] = true;
  return kept;
}

}  // namespace detail::candidates

LAMINA_INLINE StepModel::StepModel(Network network, PlaceOptions options, UpdateRule rule,
                                   Cluster cluster, int ranks,
                                   std::shared_ptr<const LayerTimes> times)
    : parts_(std::make_unique<detail::StepParts>(std::move(network), std::move(options),
                                                 std::move(rule), std::move(cluster), ranks,
                                                 std::move(times))) {}
LAMINA_INLINE StepModel::~StepModel() = default;
LAMINA_INLINE StepModel::StepModel(StepModel&&) noexcept = default;
LAMINA_INLINE StepModel& StepModel::operator=(StepModel&&) noexcept = default;

LAMINA_INLINE const Network& StepModel::network() const { return parts_->network; }
LAMINA_INLINE const PlaceOptions& StepModel::options() const { return parts_->options; }
LAMINA_INLINE const Cluster& StepModel::cluster() const { return parts_->cluster; }
LAMINA_INLINE int StepModel::ranks() const { return parts_->ranks; }

LAMINA_INLINE const std::vector<Split>& StepModel::splits(int vertex) const {
  return parts_->kind(vertex).splits;
}

LAMINA_INLINE void StepModel::add_splits(int most) {
  namespace d = detail::candidates;
  const int ranks = parts_->ranks;
  for (detail::LayerKind& kind : parts_->kinds) {
    if (!kind.layer) continue;
    std::vector<Split> more;
    for (const Split& s : d::worth_a_try(ranks, kind.layer->splits()))
      if (std::ranges::find(kind.splits, s) == kind.splits.end() &&
          why_illegal(*kind.layer, kind.xs, s, ranks).empty())
        more.push_back(s);
    std::vector<detail::OptionCost> costs;
    for (const Split& s : more) costs.push_back(parts_->cost_alone(kind, s));
    std::vector<double> seconds;
    for (const auto* some : {&kind.costs, &costs})
      for (const detail::OptionCost& cost : *some) seconds.push_back(d::alone(cost));
    // The first one stays.
    const std::vector<bool> kept = d::quickest(seconds, std::size_t(std::max(1, most)));
    const std::size_t old = kind.splits.size();
    for (std::size_t i = old; i-- > 1;)
      if (!kept[i])
        kind.splits.erase(kind.splits.begin() + std::ptrdiff_t(i)),
            kind.costs.erase(kind.costs.begin() + std::ptrdiff_t(i));
    for (std::size_t i = 0; i < more.size(); ++i)
      if (kept[old + i]) parts_->add(kind, more[i], std::move(costs[i]));
  }
}

LAMINA_INLINE Selection StepModel::select(const std::vector<Split>& splits) {
  const auto& graph = parts_->network.graph();
  check(splits.size() == graph.size(), "expected a split for each of ", graph.size(),
        " vertices, got ", splits.size());
  Selection selection;
  for (int v = 0; v < int(splits.size()); ++v) {
    detail::LayerKind& kind = parts_->kind(v);
    const Split& split = splits[std::size_t(v)];
    const std::string reason =
        kind.layer ? why_illegal(*kind.layer, kind.xs, split, parts_->ranks) : std::string();
    check(reason.empty(), graph[std::size_t(v)].name, ": ", reason);
    selection.push_back(parts_->add(kind, split));
  }
  return selection;
}

LAMINA_INLINE std::vector<Split> StepModel::splits_of(const Selection& selection) const {
  std::vector<Split> all;
  for (int v = 0; v < int(selection.size()); ++v)
    all.push_back(splits(v)[std::size_t(selection[std::size_t(v)])]);
  return all;
}

LAMINA_INLINE CostGraph StepModel::graph() const {
  const detail::StepParts& p = *parts_;
  const auto& vertices = p.network.graph();
  const double element = double(size_of(p.options.dtype.compute));
  const double times = std::max(1, p.options.micro_batches);
  CostGraph g;
  for (int v = 0; v < int(vertices.size()); ++v) {
    const detail::LayerKind& kind = p.kind(v);
    const auto& inputs = vertices[std::size_t(v)].inputs;
    const bool trains = p.gradients.needed[std::size_t(v)];
    const bool has_dx = p.gradients.of_inputs[std::size_t(v)];
    std::vector<double> seconds, hidden, bytes;
    for (const detail::OptionCost& o : kind.costs) {
      double s = o.kernels.forward + o.forward.halo + o.forward.others;
      if (has_dx) s += o.kernels.input_grad + o.backward.halo + o.backward.others;
      if (trains) s += o.sum + o.kernels.weight_grad;
      double reduction = 0;  // at the rate of a whole bucket
      for (const detail::Reduction& r : o.reductions) {
        if (r.bytes == 0) continue;
        const double bucket = std::max(r.bytes, p.options.bucket_mb * 1e6) * r.sent / r.bytes;
        reduction += p.groups.seconds(r.group, Collective::all_reduce, bucket) * r.sent / bucket;
      }
      seconds.push_back(s * times + o.kernels.update), hidden.push_back(reduction);
      bytes.push_back(o.bytes);
    }
    g.seconds.push_back(std::move(seconds)), g.hidden.push_back(std::move(hidden));
    g.bytes.push_back(std::move(bytes));
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const detail::LayerKind& from = p.kind(inputs[k]);
      const bool back = p.gradients.needed[std::size_t(inputs[k])];
      CostGraph::Edge edge{inputs[k], v, {}};
      for (const detail::OptionCost& a : from.costs)
        for (const detail::OptionCost& b : kind.costs)
          edge.seconds.push_back(
              times * (p.arrangements.seconds(a.made, b.wanted[k], element) +
                       (back ? p.arrangements.seconds(b.wanted[k], a.made, element) : 0)));
      g.edges.push_back(std::move(edge));
    }
  }
  return g;
}

LAMINA_INLINE std::vector<int> StepModel::repeated() const {
  const auto& graph = parts_->network.graph();
  std::vector<int> color = parts_->kind_of;
  // Each round looks one vertex further around (Weisfeiler and Leman, 1968).
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<int>> seen(graph.size());
    for (std::size_t v = 0; v < graph.size(); ++v) seen[v] = {color[v]};
    for (std::size_t v = 0; v < graph.size(); ++v)
      for (const int i : graph[v].inputs) seen[v].push_back(color[std::size_t(i)]);
    std::vector<std::vector<int>> readers(graph.size());
    for (std::size_t v = 0; v < graph.size(); ++v)
      for (const int i : graph[v].inputs) readers[std::size_t(i)].push_back(color[v]);
    std::map<std::vector<int>, int> numbers;
    for (std::size_t v = 0; v < graph.size(); ++v) {
      std::sort(readers[v].begin(), readers[v].end());
      seen[v].push_back(-1);
      seen[v].insert(seen[v].end(), readers[v].begin(), readers[v].end());
      color[v] = numbers.try_emplace(seen[v], int(numbers.size())).first->second;
    }
  }
  return color;
}

}  // namespace lamina
