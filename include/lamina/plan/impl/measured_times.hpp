// Kernel times that were measured, and what they say of layers that were not.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/measured_times.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace lamina {

namespace detail::measured_times {

inline constexpr double LayerSeconds::*passes[] = {
    &LayerSeconds::forward, &LayerSeconds::input_grad, &LayerSeconds::weight_grad};

/// The block of the rank that has the most; the first of several.
inline const Box& largest(const Blocks& blocks) {
  return *std::ranges::max_element(blocks.box, {}, &Box::size);
}

/// How unlike two layers of one type are.
inline double distance(const LocalLayer& a, const LocalLayer& b) {
  double sum = a.options == b.options ? 0 : std::log(8.0);
  if (a.precision != b.precision) sum += std::log(64.0);
  const auto add = [&](std::int64_t m, std::int64_t n) {
    sum += std::abs(std::log(double(std::max<std::int64_t>(1, m))) -
                    std::log(double(std::max<std::int64_t>(1, n))));
  };
  const auto add_shapes = [&](const Shape& m, const Shape& n) {
    add(m.n, n.n), add(m.c, n.c), add(m.h, n.h), add(m.w, n.w);
  };
  add_shapes(a.xs[0], b.xs[0]), add_shapes(a.y, b.y);
  return sum;
}

}  // namespace detail::measured_times

LAMINA_INLINE std::string LocalLayer::text() const {
  std::string s = lamina::text(type, " [", options, "] ", precision);
  for (const Shape& x : xs) append(s, lamina::text(' ', x));
  return lamina::text(s, " -> ", y, contains(halo, Axis::height) ? " rows" : "",
                      contains(halo, Axis::width) ? " columns" : "");
}

LAMINA_INLINE LocalLayer local_layer(const Layer& layer, std::span<const Shape> xs,
                                     const Split& split, const Precision& precision) {
  const int ways = split.ways();
  LocalLayer local{.type = std::string(layer.type()),
                   .options = layer.options(),
                   .precision = precision.text(),
                   .halo = split.axes() & (Axis::height | Axis::width)};
  for (std::size_t k = 0; k < xs.size(); ++k)
    local.xs.push_back(
        detail::measured_times::largest(layer.input_blocks(k, xs, split, ways)).shape());
  local.y = detail::measured_times::largest(layer.output_blocks(xs, split, ways)).shape();
  return local;
}

LAMINA_INLINE std::string update_name(const UpdateRule& rule, const Precision& precision,
                                      std::int64_t parameters) {
  using Kind = UpdateRule::Kind;
  const char* kind = rule.kind == Kind::sgd     ? "sgd"
                     : rule.kind == Kind::adam  ? "adam"
                     : rule.kind == Kind::adamw ? "adamw"
                                                : "custom";
  const auto many = std::uint64_t(std::clamp(parameters, INT64_C(1), most_updated));
  return text(kind, rule.custom_name.empty() ? "" : " ", rule.custom_name, ' ', rule.states(), ' ',
              precision.text(), " 2^", std::bit_width(many - 1));
}

LAMINA_INLINE const MeasuredTimes::Entry* MeasuredTimes::find(const LocalLayer& layer) const {
  const auto at = by_text_.find(layer.text());
  return at == by_text_.end() ? nullptr : &entries_[at->second];
}

LAMINA_INLINE void MeasuredTimes::add(Entry entry) {
  check(!entry.layer.type.empty() && !entry.layer.xs.empty(),
        "a measured layer has a type, and inputs");
  for (const auto pass : detail::measured_times::passes)
    check(std::isfinite(entry.seconds.*pass) && std::isfinite(entry.formula.*pass) &&
              entry.formula.*pass >= 0,
          entry.layer.text(), ": measured seconds are no numbers");
  const auto [at, isnew] = by_text_.try_emplace(entry.layer.text(), entries_.size());
  if (isnew) return entries_.push_back(std::move(entry));
  Entry& known = entries_[at->second];
  for (const auto pass : detail::measured_times::passes)
    if (known.seconds.*pass < 0)
      known.seconds.*pass = entry.seconds.*pass, known.formula.*pass = entry.formula.*pass;
}

LAMINA_INLINE void MeasuredTimes::add_update(const std::string& name, double bytes_per_second) {
  check(std::isfinite(bytes_per_second) && bytes_per_second > 0, "update ", name,
        ": expected more than 0 bytes/s, got ", bytes_per_second);
  updates_.try_emplace(name, bytes_per_second);
}

LAMINA_INLINE const MeasuredTimes::Entry* MeasuredTimes::nearest(const LocalLayer& layer,
                                                                 double LayerSeconds::*pass) const {
  const Entry* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Entry& e : entries_) {
    if (e.layer.type != layer.type || e.seconds.*pass < 0 || e.formula.*pass <= 0) continue;
    const double d = detail::measured_times::distance(e.layer, layer);
    if (d < least) best = &e, least = d;
  }
  return best;
}

LAMINA_INLINE LayerSeconds MeasuredTimes::of(const Layer& layer, std::span<const Shape> xs,
                                             const Split& split, const Cost& cost,
                                             const Precision& precision,
                                             const UpdateRule& rule) const {
  const LocalLayer local = local_layer(layer, xs, split, precision);
  const LayerSeconds formula = formulas_.of(layer, xs, split, cost, precision, rule);
  const Entry* known = find(local);
  LayerSeconds s = formula;
  for (const auto pass : detail::measured_times::passes) {
    if (known && known->seconds.*pass >= 0)
      s.*pass = known->seconds.*pass;
    else if (const Entry* like = nearest(local, pass))
      s.*pass = formula.*pass * (like->seconds.*pass / like->formula.*pass);
  }
  if (formula.forward > 0) s.recompute = formula.recompute * (s.forward / formula.forward);
  const auto update = updates_.find(update_name(rule, precision, parameters_));
  if (update != updates_.end())
    s.update = update_work(rule, cost.parameters, precision).bytes / update->second;
  return s;
}

}  // namespace lamina
