// Updates of weights: the rules' formulas, what they take from where kernels are, and rounding.
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/backends.hpp>

#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Weights after as many steps as there are gradients, each step at a rate of 0.1 * step; `as`: by
/// the norms that it has.
Values updated(Setup& s, const UpdateRule& rule, UpdateStep step, Values start,
               const std::vector<Values>& gradients, UpdatePart as = {}) {
  const Form form = s.form({1, std::int64_t(start.size()), 1, 1});
  const Tensor w = s.place(form, start);
  std::vector<Tensor> states;
  for (int i = 0; i < rule.states(); ++i) as.states.push_back(states.emplace_back(form));
  const double rate = step.rate;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    step.step = std::int64_t(i) + 1;
    step.rate = rate * double(step.step);
    const Tensor dw = s.place(form, gradients[i]);
    as.w = w, as.dw = dw;
    s.backend.update(rule, {as})->run(s.stream, step);
  }
  return s.read(w);
}

}  // namespace

TEST_CASE("SGD follows its formula") {
  on_all([](Setup& s) {
    UpdateRule rule;
    const UpdateStep step{.rate = 0.1, .weight_decay = 0.5, .grad_scale = 2};
    // g = 2 dw + w/2, at rates 0.1 and 0.2.
    CHECK(difference(updated(s, rule, step, {2, -1}, {{1, 0}}), {1.7, -0.95}) < 1e-6);
    rule.momentum = 0.5;
    // g = 3, v = 3, w = 1.7; g = 2.85, v = 4.35, w = 0.83
    CHECK(difference(updated(s, rule, step, {2}, {{1}, {1}}), {0.83}) < 1e-6);
    rule.nesterov = true;
    // g = 3, v = 3, w = 2 - 0.1 * 4.5 = 1.55; g = 2.775, v = 4.275, w = 1.55 - 0.2 * 4.9125
    CHECK(difference(updated(s, rule, step, {2}, {{1}, {1}}), {0.5675}) < 1e-6);
  });
}

TEST_CASE("Adam and AdamW follow their formulas") {
  on_all([](Setup& s) {
    UpdateRule rule;
    rule.kind = UpdateRule::Kind::adam;
    rule.beta1 = 0.5, rule.beta2 = 0.75, rule.epsilon = 1;
    UpdateStep step{.rate = 0.1, .grad_scale = 0.5};
    // g = 3: corrected m = 3, v = 9, so w = 2 - 0.1 * 3/4.
    CHECK(difference(updated(s, rule, step, {2}, {{6}}), {1.925}) < 1e-6);
    // Then g = 1: m = 1.25 / 0.75, v = (0.75 * 2.25 + 0.25) / 0.4375.
    const double second = 1.25 / 0.75 / (std::sqrt(1.9375 / 0.4375) + 1);
    CHECK(difference(updated(s, rule, step, {2}, {{6}, {2}}), {1.925 - 0.2 * second}) < 1e-6);
    step.weight_decay = 0.5;
    // g = 3 + 1, m = 4, v = 16.
    CHECK(difference(updated(s, rule, step, {2}, {{6}}), {2 - 0.1 * 4 / 5}) < 1e-6);
    rule.kind = UpdateRule::Kind::adamw;
    CHECK(difference(updated(s, rule, step, {2}, {{6}}), {2 * (1 - 0.05) - 0.075}) < 1e-6);
  });
}

TEST_CASE("an update takes from where the kernels are what is not known before") {
  on_all([](Setup& s) {
    const UpdateRule rule;  // w -= rate (scale dw + decay w)
    const auto numbers = [](Values values) {
      const Tensor t({1, std::int64_t(values.size()), 1, 1}, DType::f64);
      std::copy(values.begin(), values.end(), t.as<double>());
      return t;
    };
    const auto of = [&](const UpdateStep& step, const UpdatePart& as = {}) {
      return updated(s, rule, step, {2}, {{1}}, as)[0];
    };
    const UpdateStep plain{.rate = 0.5, .weight_decay = 0.25, .grad_scale = 3};
    CHECK(of(plain) == Approx(2 - 0.5 * (3 + 0.5)));
    UpdateStep step = plain;
    const Tensor values = numbers({0.1, 1, 2});
    step.values = values;
    CHECK(of(step) == Approx(2 - 0.05 * (6 + 0.5)));
    const Tensor found = numbers({9, 9, 9, 8, 9});
    step = plain, step.found = found, step.samples = 16;
    CHECK(of(step) == Approx(2 - 0.5 * (6 + 0.5)));
    const Tensor none = numbers({0, 0, 0, 0, 0});
    step.found = none;
    CHECK(of(step) == Approx(2 - 0.5 * (48 + 0.5)));  // no row counts: no division by zero
    const Tensor squares = numbers({9, 7});           // of norm 4, thrice that of what is scaled
    step = plain, step.squares = squares, step.clip_norm = 6;
    CHECK(of(step) == Approx(2 - 0.5 * (1.5 + 0.5)));
    step.clip_norm = 12;
    CHECK(of(step) == of(plain));
    const Tensor value = numbers({4}), grad = numbers({1});  // of norms 2 and 1
    const Tensor scale = numbers({4, 0, 0, 0});
    step = plain, step.loss_scale = scale, step.squares = squares;
    CHECK(of(step) == Approx(2 - 0.5 * (0.75 + 0.5)));
    step.clip_norm = 1.5;  // of norm 3
    CHECK(of(step) == Approx(2 - 0.5 * (0.375 + 0.5)));
    const Tensor overflow = numbers({9, std::numeric_limits<double>::infinity()});
    step.squares = overflow;
    CHECK(of(step) == 2);
    UpdatePart lars;
    lars.value_square = value, lars.grad_square = grad, lars.trust = 0.7;
    CHECK(of(plain, lars) == Approx(2 - 0.5 * (0.7 * 2 / (3 + 0.5)) * (3 + 0.5)));
    const Tensor zero = numbers({0});
    lars.value_square = zero;
    CHECK(of(plain, lars) == of(plain));
    UpdatePart group;
    group.rate = 0.5, group.weight_decay = 0.5;  // beside that of the step
    CHECK(of(plain, group) == Approx(2 - 0.25 * (3 + 1.5)));
  });
}

TEST_CASE("all back ends update alike over many weights and steps") {
  const auto reference = reference_backend();
  std::vector<UpdateRule> rules(4);
  rules[1].momentum = rules[2].momentum = 0.9;
  rules[1].nesterov = true;
  rules[2].kind = UpdateRule::Kind::adam;
  rules[3].kind = UpdateRule::Kind::adamw;
  const UpdateStep step{.rate = 0.01, .weight_decay = 1e-2, .grad_scale = 0.7};
  std::vector<Values> gradients;
  for (std::uint64_t i = 0; i < 4; ++i) gradients.push_back(random_values(1003, 10 + i));
  for (const UpdateRule& rule : rules) {
    Setup f64{*reference};
    const Values want = updated(f64, rule, step, random_values(1003, 1), gradients);
    on_all([&](Setup& s) {
      CHECK(difference(updated(s, rule, step, random_values(1003, 1), gradients), want) < 2e-6);
    });
  }
}

TEST_CASE("weights are rounded as they are updated") {
  std::vector<UpdateRule> rules(4);
  rules[1].momentum = rules[2].momentum = 0.9;
  rules[2].nesterov = true;
  rules[3].kind = UpdateRule::Kind::adamw;
  // Less than a cache line; blocks and pieces with some left over; more than caches are taken for,
  // off a vector's bounds and on them.
  for (const std::int64_t n : {9, 300, 40'007, 4'500'001, 4'500'002})
    for (const UpdateRule& rule : rules) {
      if (n > 1'000'000 && !rule.nesterov) continue;  // one rule shows it
      CAPTURE(n, rule.states(), rule.nesterov);
      const Form form{{1, n, 1, 1}, DType::f32, {}};
      std::vector<Values> weights;
      for (const auto& backend : all_backends()) {
        const Tensor w = place(*backend, form, random_values(std::size_t(n), 1));
        const Tensor dw = place(*backend, form, random_values(std::size_t(n), 2));
        // Odd ones off a vector's bounds: as a part of a larger tensor lies.
        const Tensor room = dirty({{1, n + 1, 1, 1}, DType::bf16, {}});
        View narrow = room;
        narrow.shape = form.shape, narrow.data = room.as<BF16>() + n % 2;
        std::vector<Tensor> states;
        for (int i = 0; i < rule.states(); ++i) states.emplace_back(form);
        const std::vector<View> views(states.begin(), states.end());
        Stream stream;
        backend->update(rule, {{.w = w, .dw = dw, .states = views, .rounded = narrow}})
            ->run(stream, {.rate = 0.1, .weight_decay = 0.01});
        weights.push_back(numbers(w));
        const Values kept = numbers(narrow);
        CHECK(difference(kept, rounded(weights.back(), DType::bf16)) == 0);
        CHECK(difference(kept, weights.back()) > 0);
      }
      CHECK(difference(weights.front(), weights.back()) < 2e-6);
    }
}
