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
    for (const std::int64_t count : {1, 2000, 5001, 40000})  // of the last two, batches are whole
      compare_activation<T>(a, count);
}

/// Operands begin so many elements behind where packs may.
template <class T>
void compare_sum(std::size_t count, std::size_t after = 0) {
  CAPTURE(name(dtype_of<T>), count, after);
  const auto a = as<T>(random_of<T>(count, 1)), b = as<T>(random_of<T>(count, 2));
  const Operand<T> sum(wide(a), after), more(wide(b), after);
  ok(cuda::add(nullptr, dtype_of<T>, std::int64_t(count), sum.data(), more.data(), sum.data()));
  const Values y = sum.values();
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    wrong += y[i] != double(T(Wide<T>(a[i]) + Wide<T>(b[i])));
  CHECK(wrong == 0);
}

template <class T>
void compare_sums() {
  compare_sum<T>(1001), compare_sum<T>(5001), compare_sum<T>(40000), compare_sum<T>(4096, 1);
}

/// Of rows that lie from_row elements apart, from element `first` on, to rows that lie to_row
/// apart.
template <class T>
void compare_parts(std::int64_t rows, std::int64_t width, std::int64_t from_row,
                   std::int64_t to_row, std::int64_t first) {
  CAPTURE(name(dtype_of<T>), rows, width, from_row, to_row, first);
  const auto x = as<T>(random_of<T>(std::size_t(rows * from_row), 1));
  const There<T> from(x), to(std::size_t(rows * to_row), T(-1.0));
  ok(cuda::copy_rows(nullptr, dtype_of<T>, rows, width, from.data() + first, from_row,
                     to.data() + first, to_row));
  const Values y = wide(to), all = wide(x);
  int wrong = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < to_row; ++i) {
      const bool in = i >= first && i < first + width;
      wrong += y[std::size_t(r * to_row + i)] != (in ? all[std::size_t(r * from_row + i)] : -1);
    }
  CHECK(wrong == 0);
}

template <class T>
void compare_all_parts() {
  compare_parts<T>(70, 13, 29, 20, 5);
  compare_parts<T>(1300, 16, 40, 24, 8);                                       // in packs
  compare_parts<T>(300, 16, 40, 23, 0), compare_parts<T>(300, 16, 39, 24, 0);  // not aligned
  compare_parts<T>(9, 1032, 2000, 1040, 8);
}

template <class T>
void compare_boxes(const Box& from, const Box& to) {
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

template <class T>
void compare_boxes() {
  compare_boxes<T>({{1, 3}, {0, 4}, {2, 5}, {0, 6}}, {{0, 4}, {1, 4}, {0, 9}, {1, 5}});
  compare_boxes<T>({{0, 5}, {0, 9}, {1, 13}, {0, 9}}, {{1, 3}, {0, 8}, {0, 12}, {0, 8}});
}

}  // namespace

TEST_CASE("activations on a GPU are those of the reference") {
  compare_activations<double>(), compare_activations<float>();
  compare_activations<BF16>(), compare_activations<F16>();
}

TEST_CASE("sums on a GPU are rounded once") {
  compare_sums<double>(), compare_sums<float>(), compare_sums<BF16>(), compare_sums<F16>();
}

TEST_CASE("parts of rows on a GPU are copied, and nothing beside them") {
  compare_all_parts<double>(), compare_all_parts<float>();
  compare_all_parts<BF16>(), compare_all_parts<F16>();
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
