// Convolutions in bf16 that run by Winograd in f32, between copies, where that takes less time.
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/backends.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Says how long kernels take, if it is asked, and that all are right.
struct Stopwatch final : Verdicts {
  double native = 1, wide = 1;
  bool knows = true;
  int asked = 0;
  std::vector<double> times;

  std::optional<double> find(const std::string& what) override {
    if (what.find(": seconds in ") == std::string::npos) return 0.0;
    ++asked;
    if (!knows) return Verdicts::find(what);
    return what.find("seconds in f32") != std::string::npos ? wide : native;
  }
  double keep(const std::string& what, double number) override {
    times.push_back(number);
    return Verdicts::keep(what, number);
  }
};

const ConvGeometry three = {.channels = 64, .kernel = 3, .pad = 1, .bias = true};
const Shape image{16, 64, 28, 28};

std::unique_ptr<WeightedKernel> kernel_of(const std::shared_ptr<Stopwatch>& watch,
                                          const ConvGeometry& g = three, bool mixed = true,
                                          DType dtype = DType::bf16, const Shape& x = image) {
  return onednn_backend({.mixed = mixed, .verdicts = watch})->conv(g, {x, dtype, {}});
}

bool is_wide(const WeightedKernel& k) { return k.algorithm.starts_with("f32:"); }

/// Whether there is a choice at all.
bool has_both() {
  const bool both =
      has_onednn() && onednn_backend()->arithmetic(DType::bf16) == DType::bf16 &&
      onednn_backend()->conv(three, {image, DType::f32, {}})->algorithm.find("wino") !=
          std::string::npos;
  if (!both) WARN("no bf16 by the processor, or no Winograd: nothing to test");
  return both;
}

/// y, dx, dw and db.
std::vector<Values> results(WeightedKernel& k) {
  const auto backend = onednn_backend();
  const auto some = [&](const Form& form, int seed) {
    return place(*backend, form, random_values(form.shape.size(), std::uint64_t(seed)));
  };
  Form dw = k.w, db = k.b;
  dw.dtype = db.dtype = DType::f32;
  const Tensor x = some(k.inputs[0], 1), w = some(k.w, 2), b = some(k.b, 3), dy = some(k.output, 4);
  const Tensor y = dirty(k.output), dx = dirty(k.inputs[0]), grad = dirty(dw), bias = dirty(db);
  Stream stream;
  k.forward(stream, x, w, b, y);
  k.input_grad(stream, w, dy, dx);
  k.weight_grad(stream, x, dy, grad, bias);
  std::vector<Values> all;
  for (const Tensor* t : {&y, &dx, &grad, &bias}) all.push_back(read(*backend, *t));
  return all;
}

}  // namespace

TEST_CASE("of two kernels for bf16 the one that takes less time is taken") {
  if (!has_both()) return;
  const auto watch = std::make_shared<Stopwatch>();
  watch->native = 2;
  const auto wide = kernel_of(watch);
  CHECK(is_wide(*wide));
  CHECK(wide->remark == "by Winograd in f32 between copies, 1e+03 ms instead of 2e+03");
  CHECK(wide->output.dtype == DType::bf16);
  watch->native = 1.04;  // as good as equal
  const auto native = kernel_of(watch);
  CHECK_FALSE(is_wide(*native));
  CHECK(native->remark.empty());
  // Both compute the same. Winograd's products are off by up to 1e-3 of the largest.
  const auto a = results(*wide), b = results(*native);
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("result " << i);
    CHECK(difference(a[i], b[i]) < 1.01 * 0x1p-7);  // an end of the last digit
  }
}

TEST_CASE("only what has a choice is timed, and that once") {
  if (!has_both()) return;
  const auto watch = std::make_shared<Stopwatch>();
  watch->wide = 0.1;
  CHECK_FALSE(is_wide(*kernel_of(watch, three, false)));
  CHECK_FALSE(is_wide(*kernel_of(watch, three, true, DType::f32)));
  CHECK_FALSE(is_wide(*kernel_of(watch, {.channels = 64, .kernel = 1})));
  CHECK(watch->asked == 0);

  watch->knows = false;
  const bool first = is_wide(*kernel_of(watch));
  REQUIRE(watch->times.size() == 2);
  CHECK(watch->times[0] > 0);
  CHECK(first == (watch->times[1] < 0.95 * watch->times[0]));
  CHECK(is_wide(*kernel_of(watch)) == first);
  CHECK(watch->times.size() == 2);
  // Too small for Winograd.
  CHECK_FALSE(is_wide(*kernel_of(watch, three, true, DType::bf16, {1, 64, 6, 6})));
  REQUIRE(watch->times.size() == 4);
  CHECK(watch->times[2] == 0);
}

TEST_CASE("a back end that mixes types is asked for by name") {
  CHECK_THROWS_AS(make_backend("onednn:else", DType::bf16), Error);
  if (!has_onednn()) return;
  CHECK(make_backend("onednn:mixed", DType::bf16)->name() == "onednn");
}
