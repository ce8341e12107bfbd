// Rules: how they are written, which layers they match, and what is made of them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/plan/plan.hpp>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <tuple>
#include <utility>

namespace lamina {

namespace detail {

inline constexpr std::string_view axis_names[] = {"batch", "channel", "input", "height", "width"};

inline int& ways(Split& split, std::size_t axis) {
  int* const all[] = {&split.batch, &split.channel, &split.input, &split.height, &split.width};
  return *all[axis];
}

inline Shares& shares(Split& split, std::size_t axis) {
  Split::Uneven& s = split.shares;
  Shares* const all[] = {&s.batch, &s.channel, &s.input, &s.height, &s.width};
  return *all[axis];
}

inline constexpr std::int64_t most_parts = 1 << 16;

/// "2", or shares: "3:1". In lowest terms; none where all are alike.
inline std::pair<int, Shares> parse_parts(std::string_view s, std::string_view parts) {
  Shares shares;
  int divisor = 0;
  for (std::string_view rest = parts;;) {
    const std::string_view item = rest.substr(0, rest.find(':'));
    int n = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), n);
    const bool one = item.size() == parts.size();
    check(error == std::errc() && end == item.data() + item.size() && n >= 1 && n <= most_parts,
          "split '", s, "': expected ",
          one ? "a whole number of parts" : "shares that are whole numbers", " from 1 to ",
          most_parts, ", got '", item, "'");
    if (one) return {n, {}};
    shares.push_back(n), divisor = std::gcd(divisor, n);
    if (item.size() == rest.size()) break;
    rest.remove_prefix(item.size() + 1);
  }
  for (int& share : shares) share /= divisor;
  const auto count = std::ptrdiff_t(shares.size());
  if (std::ranges::count(shares, 1) == count) shares.clear();
  return {int(count), std::move(shares)};
}

inline std::string prefix(const std::string& origin) {
  return origin.empty() ? origin : text(origin, ": ");
}

}  // namespace detail

LAMINA_INLINE Split parse_split(std::string_view s) {
  Split split;
  if (s == "none") return split;
  std::int64_t all = 1;
  bool said[std::size(detail::axis_names)] = {};
  for (std::string_view rest = s;;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const auto colon = item.find(':');
    check(colon != item.npos, "split '", s,
          "': expected AXIS:PARTS, as in batch:2,channel:2, got '", item, "'");
    const std::string_view axis = item.substr(0, colon), parts = item.substr(colon + 1);
    const auto at =
        std::size_t(std::ranges::find(detail::axis_names, axis) - std::begin(detail::axis_names));
    check(at < std::size(detail::axis_names), "split '", s, "': unknown axis '", axis, "'",
          suggestion(axis, detail::axis_names),
          ": expected batch, channel, input, height or width");
    check(!std::exchange(said[at], true), "split '", s, "': ", axis, " is given twice");
    std::tie(detail::ways(split, at), detail::shares(split, at)) = detail::parse_parts(s, parts);
    check((all *= detail::ways(split, at)) <= detail::most_parts, "split '", s, "': more than ",
          detail::most_parts, " parts");
    if (item.size() == rest.size()) return split;
    rest.remove_prefix(item.size() + 1);
  }
}

namespace detail {

/// The vertices whose layers a name or a pattern stands for; throws Error where there are none.
inline std::vector<std::size_t> matching(const std::string& layers, const std::string& origin,
                                         const Network& net) {
  const auto& graph = net.graph();
  std::vector<std::size_t> found;
  for (std::size_t i = 1; i < graph.size(); ++i)
    if (matches(layers, graph[i].name)) found.push_back(i);
  if (!found.empty()) return found;
  std::vector<std::string_view> names;
  for (std::size_t i = 1; i < graph.size(); ++i) names.push_back(graph[i].name);
  throw Error(text(prefix(origin), no_match("layer", layers, names)));
}

/// The split of the input, as the rule says: it can have other shares, and nothing else.
inline Split input_by(const Plan::Rule& rule, const Split& data) {
  Split ways = rule.split;
  ways.shares.batch.clear();
  check(ways == data, prefix(rule.origin), "'", rule.layers,
        "' is no layer: it is always split by batch over all ranks: expected ", data,
        ", or shares for as many parts, got ", rule.split);
  return rule.split;
}

}  // namespace detail

LAMINA_INLINE std::vector<Decision> decide(const Plan& plan, const Network& net, std::int64_t batch,
                                           bool allow_fallback) {
  const auto& graph = net.graph();
  std::vector<const Plan::Rule*> rules(graph.size());  // the last one that matches
  Split data = input_split(batch, plan.ranks);
  for (const Plan::Rule& rule : plan.rules)
    if (rule.layers == graph[0].name)
      data = detail::input_by(rule, input_split(batch, plan.ranks));
    else
      for (const std::size_t i : detail::matching(rule.layers, rule.origin, net)) rules[i] = &rule;
  std::vector<Decision> decisions = {{graph[0].name, data, data}};
  for (std::size_t i = 1; i < graph.size(); ++i) {
    const auto& v = graph[i];
    Decision d{v.name, rules[i] ? rules[i]->split : data, {}};
    const auto xs = net.input_shapes(v, batch);
    d.used = d.requested;
    d.reason = why_illegal(*v.layer, xs, d.used, plan.ranks);
    if (!d.reason.empty()) {
      std::vector<Split> others = rules[i] ? rules[i]->otherwise : std::vector<Split>();
      if (allow_fallback) others.push_back(data);
      const auto legal = std::ranges::find_if(others, [&](const Split& other) {
        return why_illegal(*v.layer, xs, other, plan.ranks).empty();
      });
      check(legal != others.end(), detail::prefix(rules[i] ? rules[i]->origin : ""), v.name, " (",
            v.layer->type(), "): ", d.reason);
      d.used = *legal;
    }
    decisions.push_back(std::move(d));
  }
  for (const Plan::Recompute& r : plan.recomputed)
    for (const std::size_t i : detail::matching(r.layers, r.origin, net))
      decisions[i].recompute = true;
  return decisions;
}

LAMINA_INLINE std::vector<Decision> decisions_of(const Network& net,
                                                 const std::vector<Split>& splits,
                                                 const std::vector<bool>& recompute) {
  std::vector<Decision> decisions;
  for (std::size_t v = 0; v < splits.size(); ++v)
    decisions.push_back(
        {net.graph()[v].name, splits[v], splits[v], {}, !recompute.empty() && recompute[v]});
  return decisions;
}

LAMINA_INLINE std::vector<Split> splits_of(const std::vector<Decision>& decisions) {
  std::vector<Split> splits;
  for (const Decision& d : decisions) splits.push_back(d.used);
  return splits;
}

LAMINA_INLINE std::vector<bool> recompute_of(const std::vector<Decision>& decisions) {
  std::vector<bool> recompute;
  for (const Decision& d : decisions) recompute.push_back(d.recompute);
  return recompute;
}

LAMINA_INLINE std::string placed_dtype(const PlaceOptions& placing) {
  const std::string all = placing.dtype.text();
  return placing.narrow() ? text(all, ", gradients sent in ", name(*placing.sent_gradients)) : all;
}

LAMINA_INLINE Plan plan_of(const std::vector<Decision>& decisions, std::string model, int ranks) {
  Plan plan{.model = std::move(model), .ranks = ranks};
  if (!decisions[0].used.shares.batch.empty()) plan.split(decisions[0].layer, decisions[0].used);
  for (std::size_t i = 1; i < decisions.size(); ++i) {
    plan.split(decisions[i].layer, decisions[i].used);
    if (decisions[i].recompute) plan.recompute(decisions[i].layer);
  }
  return plan;
}

}  // namespace lamina
