// Dropout and reorders: element by element what the CPU has.
#include "kernels/boxes.hpp"
#include "kernels/dropout.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reorder.hpp"
#include "made.hpp"

#include <lamina/kernels/dropout_mask.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T>
void compare_dropout(const Shape& whole, const Box& box, std::size_t after = 0) {
  CAPTURE(name(dtype_of<T>), whole.text(), box.text(), after);
  const StepValues now{.seed = 3, .step = 11, .micro_batch = 2};
  const double rate = 0.3;
  const std::int32_t layer = 5;
  const auto x = as<T>(random_of<T>(std::size_t(box.size()), 1, 3));
  const Operand<T> from(wide(x), after), result(Values(x.size(), std::nan("")), after);
  ok(cuda::drop_out(nullptr, {dtype_of<T>, rate, whole, box}, There(1, now).data(), layer,
                    from.data(), result.data()));
  const Values y = result.values();
  const DropoutMask mask(rate, now, layer, whole.size());
  std::int64_t i = 0, kept = 0, wrong = 0;
  for (std::int64_t n = box.n.begin; n < box.n.end(); ++n)
    for (std::int64_t h = box.h.begin; h < box.h.end(); ++h)
      for (std::int64_t w = box.w.begin; w < box.w.end(); ++w)
        for (std::int64_t c = box.c.begin; c < box.c.end(); ++c, ++i) {
          const bool keeps = mask.keeps(std::uint64_t(Box::of(whole).offset(n, c, h, w)));
          const auto at = std::size_t(i);
          const T right = keeps ? T(Wide<T>(1 / (1 - rate)) * Wide<T>(x[at])) : T(0.0);
          wrong += y[at] != double(right), kept += keeps;
        }
  CHECK(wrong == 0);
  CHECK((kept > 0 && kept < box.size()));
}

template <class X, class Y>
void compare_reorder(std::int64_t n, std::int64_t a, std::int64_t b, std::size_t after = 0) {
  CAPTURE(name(dtype_of<X>), name(dtype_of<Y>), n, a, b, after);
  const auto x = as<X>(random_of<X>(std::size_t(n * a * b), 1));
  const Operand<X> from(wide(x), after);
  const Operand<Y> result(Values(x.size(), std::nan("")), after);
  ok(cuda::reorder(nullptr, dtype_of<X>, from.data(), dtype_of<Y>, result.data(), n, a, b));
  const Values y = result.values();
  int wrong = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < a; ++j)
      for (std::int64_t k = 0; k < b; ++k)
        wrong += y[std::size_t((i * b + k) * a + j)] !=
                 double(Y(double(x[std::size_t((i * a + j) * b + k)])));
  CHECK(wrong == 0);
}

template <class X>
void compare_reorders() {
  const auto all = [](std::int64_t n, std::int64_t a, std::int64_t b) {
    compare_reorder<X, double>(n, a, b), compare_reorder<X, float>(n, a, b);
    compare_reorder<X, BF16>(n, a, b), compare_reorder<X, F16>(n, a, b);
  };
  all(1, 1, 1), all(2, 3, 49), all(3, 64, 33), all(2, 1, 300), all(1, 70, 1);
  all(2, 3, 1500), all(2, 1500, 3), all(1, 2, 2049), all(1, 2049, 2);  // few rows, or columns
  all(2, 70, 130), all(2, 31, 64), all(3, 32, 63), all(2, 33, 65);
  all(1, 1, 40000), all(1, 5001, 1);  // whole batches, and what is left
  compare_reorder<X, float>(1, 1, 4096, 1), compare_reorder<X, BF16>(1, 1, 4096, 1);  // not aligned
}

}  // namespace

TEST_CASE("dropout on a GPU keeps what the CPU keeps") {
  const Shape whole{3, 10, 5, 4};
  compare_dropout<double>(whole, Box::of(whole));
  compare_dropout<float>(whole, {{1, 2}, {3, 7}, {2, 3}, {0, 3}});
  compare_dropout<BF16>({4, 50, 1, 1}, {{0, 4}, {25, 25}, {0, 1}, {0, 1}});
  compare_dropout<F16>(whole, {{0, 1}, {0, 10}, {0, 5}, {2, 2}});
  // Packs of channels, more of them than a block has threads; not aligned.
  const Shape large{3, 50, 9, 8};
  const Box part{{1, 2}, {3, 40}, {1, 8}, {0, 7}};
  compare_dropout<double>(large, part), compare_dropout<float>(large, part);
  compare_dropout<BF16>(large, part), compare_dropout<F16>(large, part);
  compare_dropout<BF16>(large, part, 1);
}

TEST_CASE("a reorder on a GPU moves each element, and rounds it once") {
  compare_reorders<double>();
  compare_reorders<float>();
  compare_reorders<BF16>();
  compare_reorders<F16>();
}

TEST_CASE("what a GPU cannot start is an error") {
  const std::int64_t many = std::int64_t(1) << 31;
  const auto refused = [](cudaError_t status) { CHECK(status == cudaErrorInvalidValue); };
  const std::vector<float> x(4);
  std::vector<float> y(4);
  refused(cuda::reorder(nullptr, DType::i32, x.data(), DType::f32, y.data(), 1, 2, 2));
  refused(cuda::reorder(nullptr, DType::f32, nullptr, DType::f32, nullptr, 1, 2, many));
  refused(cuda::reorder(nullptr, DType::f32, nullptr, DType::f32, nullptr, 1, many, 2));
  const Shape large{1, 2, 1 << 15, 1 << 15};
  refused(cuda::drop_out(nullptr, {DType::f32, 0.5, large, Box::of(large)}, nullptr, 0, nullptr,
                         nullptr));
  const Box box = Box::of(large);
  refused(cuda::copy_box(nullptr, {DType::f32, nullptr, box, nullptr, box, box}));
  refused(cuda::copy_rows(nullptr, DType::f32, 1, many, nullptr, many, nullptr, many));
}
