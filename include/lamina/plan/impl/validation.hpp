// How right predictions were.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/kendall.hpp>
#include <lamina/base/median.hpp>
#include <lamina/base/text.hpp>
#include <lamina/plan/validation.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

namespace detail::validation {

inline std::vector<double> values(const std::vector<ValidatedPlan>& plans,
                                  double ValidatedPlan::*member) {
  std::vector<double> all;
  for (const ValidatedPlan& p : plans) all.push_back(p.*member);
  return all;
}

inline std::vector<Compared> sums(const std::vector<ValidatedPlan>& plans,
                                  std::vector<Compared> ValidatedPlan::*member) {
  std::vector<Compared> all;
  for (const ValidatedPlan& p : plans)
    for (const Compared& c : p.*member) {
      auto at = std::ranges::find(all, c.kind, &Compared::kind);
      if (at == all.end()) all.push_back({{}, c.kind}), at = all.end() - 1;
      at->predicted += c.predicted, at->measured += c.measured;
    }
  return all;
}

inline double error(double predicted, double measured) {
  return measured > 0 ? predicted / measured - 1 : 0;
}

inline std::string compared_table(const char* title, const std::vector<Compared>& all,
                                  std::size_t plans) {
  std::string s = format("\n%-26s %12s %12s %9s\n", title, "predicted ms", "measured ms", "error");
  const double each = 1e3 / double(std::max<std::size_t>(1, plans));
  for (const Compared& c : all) {
    append(s, format("%-26s %12.3f %12.3f", c.kind.c_str(), c.predicted * each, c.measured * each));
    append(s, c.predicted > 0 && c.measured > 0
                  ? format(" %+8.1f%%\n", 100 * error(c.predicted, c.measured))
                  : std::string("         -\n"));
  }
  return s;
}

}  // namespace detail::validation

LAMINA_INLINE const ValidatedPlan* Validation::plan(std::string_view name) const {
  const auto at = std::ranges::find(plans, name, &ValidatedPlan::name);
  return at == plans.end() ? nullptr : &*at;
}

LAMINA_INLINE double Validation::error(double ValidatedPlan::*predicted) const {
  double sum = 0;
  for (const ValidatedPlan& p : plans)
    sum += std::abs(detail::validation::error(p.*predicted, p.measured));
  return plans.empty() ? 0 : sum / double(plans.size());
}

LAMINA_INLINE double Validation::rank_correlation(double ValidatedPlan::*predicted) const {
  return kendall(detail::validation::values(plans, predicted),
                 detail::validation::values(plans, &ValidatedPlan::measured));
}

LAMINA_INLINE const ValidatedPlan* Validation::chosen() const {
  const auto timed = [](const ValidatedPlan& p) {
    std::vector<double> rounds = p.rounds;
    if (rounds.size() > 1) rounds.pop_back();
    return median(std::move(rounds));
  };
  std::vector<const ValidatedPlan*> order;
  for (const ValidatedPlan& p : plans)
    if (!p.rounds.empty()) order.push_back(&p);
  std::ranges::stable_sort(order, {}, [](const ValidatedPlan* p) { return p->calibrated; });
  const ValidatedPlan* best = plan("data");
  for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size()); ++i)
    if (!best || timed(*order[i]) < timed(*best)) best = order[i];
  return best;
}

LAMINA_INLINE const ValidatedPlan* Validation::fastest() const {
  const auto at = std::ranges::min_element(plans, {}, &ValidatedPlan::measured);
  return at == plans.end() ? nullptr : &*at;
}

LAMINA_INLINE std::vector<Compared> Validation::kernels() const {
  return detail::validation::sums(plans, &ValidatedPlan::kernels);
}
LAMINA_INLINE std::vector<Compared> Validation::waiting() const {
  return detail::validation::sums(plans, &ValidatedPlan::waiting);
}

LAMINA_INLINE std::string validation_table(const Validation& v, const PlanTableOptions& options) {
  namespace d = detail::validation;
  std::vector<const ValidatedPlan*> order;
  for (const ValidatedPlan& p : v.plans) order.push_back(&p);
  std::ranges::stable_sort(order, {}, [](const ValidatedPlan* p) { return p->measured; });
  std::vector<std::string> rows = {format("%-12s %11s %9s %13s %9s %11s", "plan", "formulas ms",
                                          "error", "calibrated ms", "error", "measured ms")};
  std::vector<std::string> rounds = {"  rounds, ms"};
  for (const ValidatedPlan* p : order) {
    rows.push_back(format("%-12s %11.2f %+8.1f%% %13.2f %+8.1f%% %11.2f", p->name.c_str(),
                          1e3 * p->formulas, 100 * d::error(p->formulas, p->measured),
                          1e3 * p->calibrated, 100 * d::error(p->calibrated, p->measured),
                          1e3 * p->measured));
    rounds.emplace_back(" ");
    for (const double seconds : p->rounds) append(rounds.back(), format(" %.2f", 1e3 * seconds));
  }
  std::string s;
  const std::size_t widest = std::ranges::max(rounds, {}, &std::string::size).size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    append(s, rows[i]);
    if (options.wide || rows[0].size() + widest <= std::size_t(options.width)) append(s, rounds[i]);
    append(s, "\n");
  }
  append(s, d::compared_table("kernels, by type", v.kernels(), v.plans.size()));
  append(s, d::compared_table("waiting, for", v.waiting(), v.plans.size()));
  append(s, format("\nmean error of a step: calibrated %.1f %%, formulas %.1f %%\n",
                   100 * v.error(&ValidatedPlan::calibrated),
                   100 * v.error(&ValidatedPlan::formulas)));
  append(s, format("rank correlation (Kendall) of %zu plans: calibrated %.3f, formulas %.3f\n",
                   v.plans.size(), v.rank_correlation(&ValidatedPlan::calibrated),
                   v.rank_correlation(&ValidatedPlan::formulas)));
  const ValidatedPlan *chosen = v.chosen(), *fastest = v.fastest(), *data = v.plan("data");
  if (chosen && fastest)
    append(s, format("chosen: %s, %.1f %% slower than the fastest, %s\n", chosen->name.c_str(),
                     100 * d::error(chosen->measured, fastest->measured), fastest->name.c_str()));
  if (chosen && data)
    append(s, format("%.2f times as fast as data\n", data->measured / chosen->measured));
  return s;
}

}  // namespace lamina
