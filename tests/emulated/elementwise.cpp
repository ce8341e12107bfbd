// Activations, sums, parts of rows and boxes beside those of the host.
#include "kernels/elementwise.hpp"

#include "kernels/boxes.hpp"
#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

using Kind = Activation::Kind;

template <class T>
View view(std::vector<T>& v) {
  return {v.data(), {{1, std::int64_t(v.size()), 1, 1}, dtype_of<T>, {}}};
}

template <class T>
void compare_activation(const Activation& a, std::int64_t count) {
  CAPTURE(name(dtype_of<T>), int(a.kind), count);
  auto x = as<T>(random_of<T>(std::size_t(count), 1)), dy = as<T>(random_of<T>(x.size(), 2));
  x[0] = T(0.0);
  if (count > 1) x[1] = T(std::nan(""));
  auto right_y = x, right_dx = dy;
  const There<T> y(x), dx(dy);  // in place
  ok(cuda::activate(nullptr, a, dtype_of<T>, count, y.data(), y.data()));
  Stream stream;
  const auto kernel = Reference().activation(a, view(x).form());
  kernel->forward(stream, view(x), view(right_y));
  const auto same = [&](const There<T>& got, const std::vector<T>& right) {
    CHECK(difference_or_nan(wide(got), wide(right)) < 4 * roundoff(dtype_of<T>));
  };
  same(y, right_y);
  ok(cuda::activate_grad(nullptr, a, dtype_of<T>, count, There(right_y).data(), dx.data(),
                         dx.data()));
  kernel->input_grad(stream, {}, view(right_y), view(dy), view(right_dx));
  same(dx, right_dx);
}

template <class T>
void compare_activations() {
  for (const Activation& a : {Activation{Kind::relu}, Activation{Kind::leaky_relu, 0.3},
                              Activation{Kind::sigmoid}, Activation{Kind::tanh}})
    compare_activation<T>(a, 1), compare_activation<T>(a, 2000);
}

template <class T>
void compare_sum() {
  const auto a = as<T>(random_of<T>(1001, 1)), b = as<T>(random_of<T>(1001, 2));
  const There<T> sum(a);
  ok(cuda::add(nullptr, dtype_of<T>, 1001, sum.data(), There(b).data(), sum.data()));
  const auto y = sum.back();
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    wrong += double(y[i]) != double(T(Wide<T>(a[i]) + Wide<T>(b[i])));
  CHECK(wrong == 0);
}

template <class T>
void compare_boxes() {
  const Box from{{1, 3}, {0, 4}, {2, 5}, {0, 6}}, to{{0, 4}, {1, 4}, {0, 9}, {1, 5}};
  auto x = as<T>(random_of<T>(std::size_t(from.size()), 1));
  const There<T> operand(x);
  const auto before = as<T>(random_of<T>(std::size_t(to.size()), 2));
  for (const Box& box : {common(from, to), Box{{2, 1}, {1, 1}, {3, 1}, {2, 1}}})
    for (const auto& [zeros, adds] : {std::pair{false, false}, {false, true}, {true, false}}) {
      CAPTURE(name(dtype_of<T>), box.text(), zeros, adds);
      const There<T> got(before);
      auto right = before;
      const auto form = [](const Box& b) { return Form{b.shape(), dtype_of<T>, {}}; };
      ok(cuda::copy_box(nullptr, {dtype_of<T>, zeros ? nullptr : operand.data(), from, got.data(),
                                  to, box, adds}));
      const BoxMove move{zeros ? View() : View(x.data(), form(from)),
                         from,
                         {right.data(), form(to)},
                         to,
                         box,
                         adds};
      move_boxes({&move, 1});
      CHECK(wide(got) == wide(right));
    }
}

}  // namespace

TEST_CASE("activations on a GPU are those of the reference") {
  compare_activations<double>(), compare_activations<float>();
  compare_activations<BF16>(), compare_activations<F16>();
}

TEST_CASE("sums on a GPU are rounded once") {
  compare_sum<double>(), compare_sum<float>(), compare_sum<BF16>(), compare_sum<F16>();
}

TEST_CASE("parts of rows on a GPU are copied, and nothing beside them") {
  const std::int64_t rows = 70, width = 13, wide_row = 29;
  const auto x = as<float>(random_of<float>(std::size_t(rows * wide_row), 1));
  const There<float> from(x), to(std::size_t(rows * 20), -1);
  ok(cuda::copy_rows(nullptr, DType::f32, rows, width, from.data() + 5, wide_row, to.data() + 2,
                     20));
  const auto y = to.back();
  int wrong = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < 20; ++i) {
      const bool in = i >= 2 && i < 2 + width;
      wrong += y[std::size_t(r * 20 + i)] != (in ? x[std::size_t(r * wide_row + 5 + i - 2)] : -1);
    }
  CHECK(wrong == 0);
}

TEST_CASE("boxes of labels on a GPU move bit by bit") {
  const Box block{{0, 300}, {0, 1}, {0, 1}, {0, 1}}, box{{7, 290}, {0, 1}, {0, 1}, {0, 1}};
  std::vector<std::int32_t> x(300);
  for (std::size_t i = 0; i < x.size(); ++i)  // some are NaN, as f32
    x[i] = std::int32_t(0x7F800001u + 7919u * i);
  const There<std::int32_t> from(x), to(300, 5);
  ok(cuda::copy_box(nullptr, {DType::i32, from.data(), block, to.data(), block, box}));
  const auto y = to.back();
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == (i >= 7 && i < 297 ? x[i] : 5));
  CHECK(cuda::copy_box(nullptr, {DType::i32, from.data(), block, to.data(), block, box, true}) ==
        cudaErrorInvalidValue);
}

TEST_CASE("boxes on a GPU move as on the host") {
  compare_boxes<double>(), compare_boxes<float>(), compare_boxes<BF16>(), compare_boxes<F16>();
}
