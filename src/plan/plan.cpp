// Rules: how they are written, which layers they match, and what is made of them.
#include <lamina/base/nearest.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/plan/plan.hpp>

#include <algorithm>
#include <charconv>

namespace lamina {

namespace {

constexpr std::string_view axis_names[] = {"batch", "channel", "input", "height", "width"};

/// " (did you mean fc6?)", or nothing.
template <class Names>
std::string suggestion(std::string_view name, const Names& names) {
  const auto guess = nearest(name, names);
  return guess.empty() ? std::string() : text(" (did you mean ", guess, "?)");
}

int& ways(Split& split, std::size_t axis) {
  int* const all[] = {&split.batch, &split.channel, &split.input, &split.height, &split.width};
  return *all[axis];
}

std::string prefix(const std::string& origin) {
  return origin.empty() ? origin : text(origin, ": ");
}

}  // namespace

Split parse_split(std::string_view s) {
  Split split;
  if (s == "none") return split;
  constexpr std::int64_t most = 1 << 16;
  std::int64_t all = 1;
  bool said[std::size(axis_names)] = {};
  for (std::string_view rest = s;;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const auto colon = item.find(':');
    check(colon != item.npos, "split '", s,
          "': expected AXIS:PARTS, as in batch:2,channel:2, got '", item, "'");
    const std::string_view axis = item.substr(0, colon), parts = item.substr(colon + 1);
    const auto at = std::size_t(std::ranges::find(axis_names, axis) - std::begin(axis_names));
    check(at < std::size(axis_names), "split '", s, "': unknown axis '", axis, "'",
          suggestion(axis, axis_names), ": expected batch, channel, input, height or width");
    check(!std::exchange(said[at], true), "split '", s, "': ", axis, " is given twice");
    int n = 0;
    const auto [end, error] = std::from_chars(parts.data(), parts.data() + parts.size(), n);
    check(error == std::errc() && end == parts.data() + parts.size() && n >= 1 && n <= most,
          "split '", s, "': expected a whole number of parts from 1 to ", most, ", got '", parts,
          "'");
    ways(split, at) = n;
    check((all *= n) <= most, "split '", s, "': more than ", most, " parts");
    if (item.size() == rest.size()) return split;
    rest.remove_prefix(item.size() + 1);
  }
}

namespace {

/// The vertices whose layers a name or a pattern stands for; throws Error where there are none.
std::vector<std::size_t> matching(const std::string& layers, const std::string& origin,
                                  const Network& net) {
  const auto& graph = net.graph();
  std::vector<std::size_t> found;
  for (std::size_t i = 1; i < graph.size(); ++i)
    if (matches(layers, graph[i].name)) found.push_back(i);
  if (!found.empty()) return found;
  std::vector<std::string_view> names;
  for (std::size_t i = 1; i < graph.size(); ++i) names.push_back(graph[i].name);
  check(layers != graph[0].name, prefix(origin), "'", layers,
        "' is no layer: it is always split by batch over all ranks");
  throw Error(text(prefix(origin), no_match("layer", layers, names)));
}

}  // namespace

std::vector<Decision> decide(const Plan& plan, const Network& net, std::int64_t batch,
                             bool allow_fallback) {
  const auto& graph = net.graph();
  std::vector<const Plan::Rule*> rules(graph.size());  // the last one that matches
  for (const Plan::Rule& rule : plan.rules)
    for (const std::size_t i : matching(rule.layers, rule.origin, net)) rules[i] = &rule;
  const Split data = input_split(batch, plan.ranks);
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
      check(legal != others.end(), prefix(rules[i] ? rules[i]->origin : ""), v.name, " (",
            v.layer->type(), "): ", d.reason);
      d.used = *legal;
    }
    decisions.push_back(std::move(d));
  }
  for (const Plan::Recompute& r : plan.recomputed)
    for (const std::size_t i : matching(r.layers, r.origin, net)) decisions[i].recompute = true;
  return decisions;
}

std::vector<Split> splits_of(const std::vector<Decision>& decisions) {
  std::vector<Split> splits;
  for (const Decision& d : decisions) splits.push_back(d.used);
  return splits;
}

std::vector<bool> recompute_of(const std::vector<Decision>& decisions) {
  std::vector<bool> recompute;
  for (const Decision& d : decisions) recompute.push_back(d.recompute);
  return recompute;
}

Plan plan_of(const std::vector<Decision>& decisions, std::string model, int ranks) {
  Plan plan{.model = std::move(model), .ranks = ranks};
  for (std::size_t i = 1; i < decisions.size(); ++i) {
    plan.split(decisions[i].layer, decisions[i].used);
    if (decisions[i].recompute) plan.recompute(decisions[i].layer);
  }
  return plan;
}

}  // namespace lamina
