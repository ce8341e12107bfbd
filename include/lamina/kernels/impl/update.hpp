// The arithmetic of an update's numbers: clipping and LARS; and updates and sums that run on the
// host, part after part.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/detail/in_turn.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

namespace detail {

inline double sum_of(const View& squares) {
  double sum = 0;
  for (const double square : squares.elements<double>()) sum += square;
  return sum;
}

}  // namespace detail

LAMINA_INLINE std::string LossScaling::text() const {
  if (!on()) return "off";
  return lamina::text(double_after > 0 ? "dynamic, from " : "", exact(start),
                      double_after > 0 ? lamina::text(", doubled after ", double_after) : "");
}

LAMINA_INLINE std::string LossScale::text() const {
  return lamina::text("loss scale ", scale, ", ", skipped, skipped == 1 ? " update" : " updates",
                      " skipped");
}

LAMINA_INLINE void LossScaling::check() const {
  int exponent = 0;
  lamina::check(
      start == 0 || (start >= least && start <= most && std::frexp(start, &exponent) == 0.5),
      "loss scale: expected a power of two from ", least, " to ", most, ", got ", start);
  lamina::check(double_after >= 0,
                "loss scale: expected a number of steps after which it doubles, got ",
                double_after);
}

LAMINA_INLINE void adjust_loss_scale(const LossScaling& how, const View& squares,
                                     const View& scale) {
  reinterpret_cast<LossScale*>(scale.as<double>())
      ->adjust(how, !std::isfinite(detail::sum_of(squares)));
}

LAMINA_INLINE UpdateStep UpdatePart::resolved(const UpdateStep& step) const {
  UpdateStep s{step.rate * rate, step.weight_decay + weight_decay, step.grad_scale, step.step};
  if (step.values) {
    const auto& now = Passed<UpdateValues>::in(step.values);
    s.rate *= now.rate, s.grad_scale *= now.scale, s.step = std::int64_t(now.step);
  }
  if (step.found) s.grad_scale *= step.samples / std::max(step.found.as<double>()[3], 1.0);
  if (step.loss_scale) s.grad_scale /= Passed<LossScale>::in(step.loss_scale).scale;
  if (step.squares) {
    const double sum = detail::sum_of(step.squares), norm = s.grad_scale * std::sqrt(sum);
    s.skip = step.loss_scale && !std::isfinite(sum);
    if (step.clip_norm > 0 && norm > step.clip_norm) s.grad_scale *= step.clip_norm / norm;
  }
  if (value_square) {
    const double value = std::sqrt(*value_square.as<double>());
    const double grad = s.grad_scale * std::sqrt(*grad_square.as<double>());
    const double below = grad + s.weight_decay * value;
    const double local = value > 0 && below > 0 ? trust * value / below : 1;
    s.weight_decay *= local, s.grad_scale *= local;
  }
  return s;
}

namespace detail {

LAMINA_INLINE void check_parts(const UpdateRule& rule, std::span<const UpdatePart> parts) {
  check(rule.kind != UpdateRule::Kind::custom, "update: a rule of one's own is no kernel");
  for (const UpdatePart& p : parts) {
    check_operand(p.w, p.w, "update w");
    check_operand(p.dw, {p.w.shape, p.dw.dtype, p.w.layout}, "update dw");
    check(p.states.size() == std::size_t(rule.states()), "update: expected ", rule.states(),
          " states, got ", p.states.size());
    for (const View& state : p.states) check_operand(state, p.w, "update state");
    if (p.rounded)
      check_operand(p.rounded, {p.w.shape, p.rounded.dtype, p.w.layout}, "update rounded");
  }
}

LAMINA_INLINE UpdateInTurn::UpdateInTurn(const Backend* rounding, std::vector<UpdatePart> parts,
                                         One one)
    : parts_(std::move(parts)), one_(std::move(one)) {
  for (const UpdatePart& p : parts_)
    rounds_.push_back(rounding && p.rounded ? rounding->reorder(p.w, p.rounded) : nullptr);
}

LAMINA_INLINE void UpdateInTurn::run(Stream& stream, const UpdateStep& step) {
  stream.run(Pass::update, "update", [&] {
    for (const UpdatePart& p : parts_)
      if (const UpdateStep numbers = p.resolved(step); !numbers.skip) one_(stream, numbers, p);
  });
  stream.under(Pass::update, [&] {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (rounds_[i]) rounds_[i]->forward(stream, parts_[i].w, parts_[i].rounded);
  });
}

LAMINA_INLINE SquaresInTurn::SquaresInTurn(std::vector<SquaresPart> parts, One one)
    : parts_(std::move(parts)), one_(one) {
  for (const SquaresPart& p : parts_) {
    check_elements(p.x, "squares");
    check_operand(p.x, p.x, "squares");
    check_operand(p.sum, {{1, 1, 1, 1}, DType::f64, {}}, "squares sum");
  }
}

LAMINA_INLINE void SquaresInTurn::run(Stream& stream, Pass pass) {
  stream.run(pass, "squares", [&] {
    for (const SquaresPart& p : parts_) *p.sum.as<double>() = one_(p.x);
  });
}

}  // namespace detail

}  // namespace lamina
