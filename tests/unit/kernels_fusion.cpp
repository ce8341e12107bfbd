// Kernels with an epilogue compute what the kernels do that it stands for, one after the other.
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/backends.hpp>

#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

const Epilogue epilogues[] = {
    {.add = true},
    {.activation = Activation{Activation::Kind::relu}},
    {.activation = Activation{Activation::Kind::leaky_relu, 0.25}},
    {.add = true, .activation = Activation{Activation::Kind::relu}},
    {.add = true, .activation = Activation{Activation::Kind::leaky_relu, 0.25}}};

Form f64_vector(std::int64_t c) { return {{1, c, 1, 1}, DType::f64, {}}; }

struct Results {
  Values y, dx, dadded, sums;
};

/// Of batch norm with its statistics, gradients included, and what the epilogue says behind it. In
/// one kernel if `fused`; dadded lies where dy lies if `in_place`. Of numbers that `held` holds.
Results norm(Setup& s, const Shape& shape, const Epilogue& e, DType held, bool fused,
             bool in_place = false) {
  const std::int64_t c = shape.c, size = shape.size();
  const auto kernel = s.backend.batch_norm(s.form(shape), fused ? e : Epilogue());
  const Form form = kernel->output, vector{{1, c, 1, 1}, wide(s.dtype), {}};
  const auto some = [&](std::int64_t n, int seed) { return rounded(random_values(n, seed), held); };
  const Tensor x = s.place(form, some(size, 1)), added = s.place(form, some(size, 2));
  const Tensor w = s.place(vector, some(c, 3)), b = s.place(vector, some(c, 4));
  const Tensor dy = s.place(form, some(size, 5)), y = dirty(form), dx = dirty(form);
  const Tensor mean = dirty(f64_vector(c)), inv_std = dirty(f64_vector(c));
  const Tensor running(vector), variance(vector), sums = dirty(f64_vector(2 * c));
  const double count = double(size / c);
  kernel->statistics(s.stream, x, sums);
  kernel->finish(s.stream, sums, count, 1e-5, 0.1, mean, inv_std, running, variance);
  if (fused) {
    const Tensor signs = e.activation ? dirty(kernel->signs) : Tensor(), other = dirty(form);
    const View kept = !e.add || !e.activation ? View() : in_place ? dy.view() : other.view();
    kernel->normalize(s.stream, x, mean, inv_std, w, b, y, e.add ? added.view() : View(), signs);
    kernel->gradients(s.stream, x, mean, inv_std, dy, sums, {}, {}, signs, kept);
    kernel->input_grad(s.stream, x, mean, inv_std, w, kept ? kept : dy.view(), sums, count, dx,
                       kept ? View() : signs.view());
    return {s.read(y), s.read(dx), e.add ? s.read(kept ? kept : dy.view()) : Values(),
            s.read(sums)};
  }
  kernel->normalize(s.stream, x, mean, inv_std, w, b, y);
  const std::vector<Form> two(2, form);
  const std::vector<View> both{y, added};
  if (e.add) s.backend.sum(two)->forward(s.stream, both, y);
  if (e.activation) {
    const auto activation = s.backend.activation(*e.activation, form);
    activation->forward(s.stream, y, y);
    activation->input_grad(s.stream, y, y, dy, dy);
  }
  kernel->gradients(s.stream, x, mean, inv_std, dy, sums, {}, {});
  kernel->input_grad(s.stream, x, mean, inv_std, w, dy, sums, count, dx);
  return {s.read(y), s.read(dx), e.add ? s.read(dy) : Values(), s.read(sums)};
}

void check_norm(Setup& s, const Shape& shape) {
  for (const Epilogue& e : epilogues) {
    INFO(shape.text() << (e.add ? ", add" : "") << ", slope " << e.slope());
    REQUIRE(s.backend.fuses(Fusible::batch_norm, e));
    // Apart bf16 would round, and change signs, in between: the exact ones then, rounded once.
    const bool narrow = s.dtype == DType::bf16;
    const double tolerance = s.dtype == DType::f64 ? 1e-12 : narrow ? 1.01 * 0x1p-8 : 1e-5;
    const auto reference = reference_backend();
    Setup exact{*reference, DType::f64, false};
    const Results apart = norm(narrow ? exact : s, shape, e, s.dtype, false);
    for (const bool in_place : {false, true}) {
      const Results fused = norm(s, shape, e, s.dtype, true, in_place);
      CHECK(difference(fused.y, apart.y) < tolerance);
      CHECK(difference(fused.dx, apart.dx) < tolerance);
      CHECK(difference(fused.dadded, apart.dadded) < tolerance);
      CHECK(difference(fused.sums, apart.sums) < tolerance);
    }
  }
}

}  // namespace

TEST_CASE("batch norm with an epilogue is batch norm, sum and activation", "[isa]") {
  const auto all = [](Setup& s) {
    check_norm(s, {3, 20, 5, 7});  // neither channels nor rows fill a vector
    check_norm(s, {2, 32, 8, 8});
    check_norm(s, {1, 3, 1, 5});
    check_norm(s, {1, 17, 43, 61});  // several pieces, and rounds within a piece
  };
  on_all(all, {DType::f32, DType::f64, DType::bf16});
}

TEST_CASE("batch norm keeps the variance of what lies far from zero", "[isa]") {
  const auto far = [](Setup& s) {
    // Whole numbers around 200, which all types hold. Squares added up in f32 alone would lose it.
    const Shape shape{4, 17, 43, 61};
    Values values = random_values(shape.size(), 1);
    for (double& v : values) v = 200 + std::round(2 * v);
    const auto kernel = s.backend.batch_norm(s.form(shape));
    const Tensor x = s.place(kernel->output, values), sums = dirty(f64_vector(2 * shape.c));
    kernel->statistics(s.stream, x, sums);
    Values want(std::size_t(2 * shape.c));
    const std::size_t plane = std::size_t(shape.h * shape.w), c = std::size_t(shape.c);
    for (std::size_t i = 0; i < values.size(); ++i) {
      want[i / plane % c] += values[i];
      want[c + i / plane % c] += values[i] * values[i];
    }
    CHECK(s.read(sums) == want);  // whole numbers, too
  };
  on_all(far, {DType::f32, DType::f64, DType::bf16});
}

TEST_CASE("batch norm with an epilogue goes past the caches", "[host]") {
  if (!has_onednn()) return;
  const auto backend = onednn_backend();
  Setup s{*backend, DType::f32, true};
  check_norm(s, {2, 16, 300, 400});  // 15 MB
}

TEST_CASE("every activation lets a NaN through, also beside channels that are padding", "[isa]") {
  using Kind = Activation::Kind;
  const auto check_kinds = [](Setup& s) {
    for (const Shape shape : {Shape{2, 3, 4, 5}, Shape{2, 20, 4, 5}, Shape{1, 32, 3, 3}})
      for (const Kind kind : {Kind::relu, Kind::leaky_relu, Kind::sigmoid, Kind::tanh}) {
        CAPTURE(shape, int(kind));
        Values x = random_values(shape.size(), 3);
        for (std::size_t i = 0; i < x.size(); i += 7) x[i] = std::nan("");
        const auto kernel = s.backend.activation({kind}, s.form(shape));
        const Tensor in = s.place(kernel->inputs[0], x), y = dirty(kernel->output);
        kernel->forward(s.stream, in, y);
        const Values found = s.read(y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) wrong += std::isnan(found[i]) != (i % 7 == 0);
        CHECK(wrong == 0);
      }
  };
  on_all(check_kinds, {DType::f32, DType::f64, DType::bf16});
}

TEST_CASE("an epilogue lets a NaN through, and no other activation than a rectifier in") {
  on_all([](Setup& s) {
    const Epilogue e{.add = true, .activation = Activation{Activation::Kind::relu}};
    const auto kernel = s.backend.batch_norm(s.form({1, 2, 2, 2}), e);
    const Form form = kernel->output, vector{{1, 2, 1, 1}, s.dtype, {}};
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = s.place(form, {nan, 1, -1, 2, -inf, inf, 0, 3}), y = dirty(form);
    const Tensor added = s.place(form, {0, nan, 0, 0, 0, 0, 0, 0});
    const Tensor mean = s.place(f64_vector(2), {0, 0}), inv_std = s.place(f64_vector(2), {1, 1});
    const Tensor signs = dirty(kernel->signs), sums = dirty(f64_vector(4)), kept = dirty(form);
    kernel->normalize(s.stream, x, mean, inv_std, {}, {}, y, added, signs);
    const Values found = s.read(y);
    CHECK((std::isnan(found[0]) && std::isnan(found[1])));
    CHECK(Values(found.begin() + 2, found.end()) == Values{0, 2, 0, inf, 0, 3});
    const Tensor dy = s.place(form, {1, 2, 3, 4, 5, 6, 7, 8});
    kernel->gradients(s.stream, x, mean, inv_std, dy, sums, {}, {}, signs, kept);
    CHECK(s.read(kept) == Values{1, 2, 0, 4, 0, 6, 0, 8});
    for (const auto kind : {Activation::Kind::sigmoid, Activation::Kind::tanh}) {
      const Epilogue other{.activation = Activation{kind}};
      CHECK_FALSE(s.backend.fuses(Fusible::batch_norm, other));
      CHECK_THROWS_WITH(s.backend.batch_norm(form, other),
                        ContainsSubstring("no activation but relu and leaky_relu"));
    }
  });
}
