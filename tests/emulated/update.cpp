// Updates and sums of squares, emulated, beside those of the reference.
#include "kernels/update.hpp"

#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

using Kind = UpdateRule::Kind;

/// What a step reads where the kernels are.
struct Passed {
  UpdateValues now{.rate = 0.5, .step = 3, .scale = 0.25};
  Values found{0, 0, 0, 7, 0}, squares{900, 16, 9}, value{30}, grad{4000};
};

template <class T, class G>
void compare(const UpdateRule& rule, bool reads, std::int64_t count) {
  CAPTURE(name(dtype_of<T>), name(dtype_of<G>), int(rule.kind), rule.momentum, rule.nesterov,
          reads);
  const auto size = std::size_t(count);
  auto w = as<T>(random_of<T>(size, 1)), first = as<T>(random_of<T>(size, 3)), second = first;
  for (T& v : second) v = std::abs(v);
  const auto dw = as<G>(random_of<G>(size, 2));
  auto rw = w, r1 = first, r2 = second;
  Passed p;
  UpdateStep step{.rate = 0.1, .weight_decay = 0.01, .grad_scale = 2, .step = 5};
  cuda::Update u{.kind = cuda::Update::Kind(int(rule.kind)),
                 .momentum = rule.momentum,
                 .nesterov = rule.nesterov,
                 .beta1 = rule.beta1,
                 .beta2 = rule.beta2,
                 .epsilon = rule.epsilon,
                 .rate = 0.1,
                 .weight_decay = 0.01,
                 .grad_scale = 2,
                 .step = 5};
  const auto view = [](Values& v) {
    return View(v.data(), {{1, std::int64_t(v.size()), 1, 1}, DType::f64, {}});
  };
  if (reads) {
    step.values = {&p.now, lamina::Passed<UpdateValues>::form()};
    step.found = view(p.found), step.samples = 14;
    step.squares = view(p.squares), step.clip_norm = 3;
    step.value_square = view(p.value), step.grad_square = view(p.grad), step.trust = 0.02;
    u.values = &p.now, u.found = p.found.data(), u.samples = 14;
    u.squares = p.squares.data(), u.square_count = 3, u.clip_norm = 3;
    u.value_square = p.value.data(), u.grad_square = p.grad.data(), u.trust = 0.02;
  }
  const bool has1 = rule.states() > 0, has2 = rule.states() > 1;
  ok(cuda::update(nullptr, u, dtype_of<T>, count, w.data(), dtype_of<G>, dw.data(),
                  has1 ? first.data() : nullptr, has2 ? second.data() : nullptr));
  const auto form = [&](DType t) { return Form{{1, count, 1, 1}, t, {}}; };
  std::vector<View> states;
  if (has1) states.push_back({r1.data(), form(dtype_of<T>)});
  if (has2) states.push_back({r2.data(), form(dtype_of<T>)});
  Stream stream;
  auto copy = dw;
  Reference().update(stream, rule, step, {rw.data(), form(dtype_of<T>)},
                     {copy.data(), form(dtype_of<G>)}, states);
  const double close = 4 * roundoff(dtype_of<T>);
  CHECK(difference(wide(w), wide(rw)) < close);
  CHECK(difference(wide(first), wide(r1)) < close);
  CHECK(difference(wide(second), wide(r2)) < close);
}

template <class T, class G>
void compare_all() {
  for (const bool reads : {false, true}) {
    compare<T, G>({.kind = Kind::sgd}, reads, 1);
    compare<T, G>({.kind = Kind::sgd, .momentum = 0.9}, reads, 257);
    compare<T, G>({.kind = Kind::sgd, .momentum = 0.9, .nesterov = true}, reads, 1000);
    compare<T, G>({.kind = Kind::adam}, reads, 769);
    compare<T, G>({.kind = Kind::adamw}, reads, 2000);
  }
}

template <class T>
void compare_squares() {
  for (const std::int64_t count : {0, 1, 255, 256, 257, 5000}) {
    const auto x = as<T>(random_of<T>(std::size_t(count), 1));
    std::vector<double> partials(cuda::square_workspace / sizeof(double), std::nan(""));
    double sum = std::nan(""), right = 0;
    ok(cuda::squared_norm(nullptr, dtype_of<T>, count, x.data(), &sum, partials.data()));
    for (const T v : x) right += double(v) * double(v);
    CAPTURE(name(dtype_of<T>), count);
    CHECK(sum == Approx(right).epsilon(1e-13));
  }
}

}  // namespace

TEST_CASE("parameters on a GPU are updated as the reference updates them") {
  compare_all<double, double>();
  compare_all<float, float>();
  compare_all<float, BF16>();
  compare_all<float, F16>();
}

TEST_CASE("squares on a GPU are summed in f64") {
  compare_squares<double>(), compare_squares<float>();
  compare_squares<BF16>(), compare_squares<F16>();
}

TEST_CASE("weights on a GPU that are narrower than their states are not updated in place") {
  BF16 w{};
  CHECK(cuda::update(nullptr, {}, DType::bf16, 1, &w, DType::bf16, &w, nullptr, nullptr) ==
        cudaErrorInvalidValue);
}
