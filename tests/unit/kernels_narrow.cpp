// Kernels with bf16 and f16: products and sums as exact as those of f32, rounded once.
#include "catch.hpp"
#include "support/kernel_cases.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// How far, in units of what is allowed: half a unit in the last place of the result, and what f32
/// may lose on the way.
double beyond(const Values& got, const Values& want, double roundoff, double tolerance) {
  if (got.size() != want.size()) return INFINITY;
  double squares = 0, worst = 0;
  for (const double v : want) squares += v * v;
  const double rms = std::sqrt(squares / double(std::max<std::size_t>(want.size(), 1)));
  constexpr double subnormal = 0x1p-25;  // of f16
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double size = std::abs(want[i]);
    const double allowed = roundoff * size + tolerance * std::max(size, rms) + subnormal;
    const double apart = std::abs(got[i] - want[i]) / allowed;
    if (!(apart <= worst)) worst = std::isnan(apart) ? INFINITY : apart;
  }
  return worst;
}

struct Narrow {
  std::shared_ptr<const Backend> backend;
  DType dtype;
  bool native;
};
std::vector<Narrow> backends() {
  std::vector<Narrow> all{{reference_backend(), DType::bf16, false},
                          {reference_backend(), DType::f16, false}};
  if (has_onednn())
    for (const bool native : {false, true}) all.push_back({onednn_backend(), DType::bf16, native});
  return all;
}

/// Gradients of weights are f32.
bool is_wide(const Case& c, std::size_t result) {
  return result >= 2 && (c.name.starts_with("conv") || c.name.starts_with("linear") ||
                         c.name.starts_with("batch norm"));
}

}  // namespace

TEST_CASE("kernels round once with bf16 and f16", "[isa]") {
  const auto reference = reference_backend();
  for (const auto& [backend, dtype, native] : backends())
    for (const Case& c : kernel_cases()) {
      INFO(backend->name() << (native ? ", native layout: " : ": ") << name(dtype) << ' '
                           << c.name);
      const bool is_loss = c.name.starts_with("loss");  // of which dy is but a number, y f64
      std::vector<Values> in;
      for (const Values& operand : c.operands()) in.push_back(rounded(operand, dtype));
      const Values dy = is_loss ? c.gradient() : rounded(c.gradient(), dtype);
      Setup exact{*reference}, narrow{*backend, dtype, native};
      exact.stored = dtype;
      const auto want = c.run(exact, in, dy);
      std::vector<Values> got(want.size());
      CHECK_NOTHROW(got = c.run(narrow, in, dy));
      REQUIRE(got.size() == want.size());
      for (std::size_t r = 0; r < got.size(); ++r) {
        INFO((r ? text("gradient of operand ", r - 1) : std::string("y")));
        const bool unrounded = is_wide(c, r) || (is_loss && r == 0);
        CHECK(beyond(got[r], want[r], unrounded ? 0 : roundoff(dtype), c.tolerance + 1e-7) <= 1);
        if (!unrounded) CHECK(got[r] == rounded(got[r], dtype));
      }
    }
}

TEST_CASE("kernels allocate nothing with bf16 either", "[isa]") {
  if (!counts_allocations()) return;
  for (const auto& [backend, dtype, native] : backends()) {
    for (const Case& c : kernel_cases()) {
      INFO(backend->name() << ": " << c.name);
      Setup setup{*backend, dtype, native, true};
      CHECK_NOTHROW(c.run(setup, c.operands(), c.gradient()));
      if (backend->name() == "reference") CHECK(setup.allocations == 0);
      // As those for f32: oneDNN's matrix product packs its operands.
      const bool product = setup.algorithm.find("gemm:") != std::string::npos;
      CHECK(setup.largest_allocation < (product ? 1500000 : 4096));
    }
  }
}

TEST_CASE("gradients of weights are rounded to the type that is asked for") {
  const auto reference = reference_backend();
  const auto kernel = reference->linear(3, true, {{5, 4, 1, 1}, DType::bf16, {}});
  const Tensor x = place(*reference, kernel->inputs[0], random_values(20, 1));
  const Tensor dy = place(*reference, kernel->output, random_values(15, 2));
  Stream stream;
  std::vector<Values> dw, db;
  for (const DType t : {DType::f32, DType::bf16}) {
    const Tensor w(kernel->w.shape, t), b(kernel->b.shape, t);
    kernel->weight_grad(stream, x, dy, w, b);
    dw.push_back(numbers(w)), db.push_back(numbers(b));
  }
  CHECK(dw[0] != dw[1]);
  CHECK(rounded(dw[0], DType::bf16) == dw[1]);
  CHECK(rounded(db[0], DType::bf16) == db[1]);
}

TEST_CASE("the update takes gradients of any type") {
  const auto reference = reference_backend();
  const UpdateRule rule =
      GENERATE(UpdateRule{.momentum = 0.9}, UpdateRule{.kind = UpdateRule::Kind::adamw});
  const Form form{{1, 9, 1, 1}, DType::f32, {}};
  const Values dw = rounded(random_values(9, 2), DType::f16);
  std::vector<Values> w;
  for (const DType t : {DType::f32, DType::f16}) {
    const Tensor value = place(*reference, form, random_values(9, 1));
    const Tensor gradient = place(*reference, {form.shape, t, {}}, dw);
    const std::vector<Tensor> states = [&] {
      std::vector<Tensor> all;
      for (int i = 0; i < rule.states(); ++i) all.emplace_back(form);
      return all;
    }();
    const std::vector<View> views(states.begin(), states.end());
    Stream stream;
    reference->update(rule, {{.w = value, .dw = gradient, .states = views}})
        ->run(stream, {.rate = 0.1, .weight_decay = 0.01});
    w.push_back(numbers(value));
  }
  CHECK(w[0] == w[1]);
  CHECK(w[0] != rounded(w[0], DType::f16));
}

TEST_CASE("a reorder converts between types") {
  const auto reference = reference_backend();
  const Form wide{{1, 2, 3, 4}, DType::f32, {}}, narrow{{1, 2, 3, 4}, DType::bf16, {}};
  const auto kernel = reference->reorder(wide, narrow);
  CHECK(!kernel->in_place);
  const Values values = random_values(24, 3);
  const Tensor x = place(*reference, wide, values), y = dirty(narrow), dx = dirty(wide);
  Stream stream;
  kernel->forward(stream, x, y);
  kernel->input_grad(stream, {}, {}, y, dx);
  CHECK(numbers(y) == rounded(values, DType::bf16));
  CHECK(numbers(dx) == numbers(y));
  CHECK_THROWS_AS(kernel->forward(stream, y, x), Error);
}

TEST_CASE("the reference back end says which precisions it has") {
  const auto reference = reference_backend();
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
    CHECK(reference->supports(t));
  CHECK(!reference->supports(DType::i32));
  const auto with = [&](DType Precision::*what, DType t, Precision p = DType::bf16) {
    p.*what = t;
    return reference->supports(p);
  };
  CHECK(with(&Precision::gradients, DType::bf16));
  CHECK(with(&Precision::states, DType::f64));
  CHECK(!with(&Precision::states, DType::bf16));
  CHECK(!with(&Precision::statistics, DType::bf16));
  CHECK(!with(&Precision::weights, DType::f32));
  CHECK(!with(&Precision::gradients, DType::bf16, DType::f32));
}
