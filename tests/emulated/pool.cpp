// Pooling against the reference.
#include "kernels/pool.hpp"

#include "kernels/divisor.hpp"
#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

using Kind = PoolGeometry::Kind;

struct Results {
  Values y, dx;
};

/// Plain values n-h-w-c, and back where `back`.
Values nhwc(const Shape& s, const Values& from, bool back = false) {
  Values to(from.size());
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t c = 0; c < s.c; ++c)
      for (std::int64_t i = 0; i < s.h * s.w; ++i) {
        const auto plain = std::size_t((n * s.c + c) * s.h * s.w + i);
        const auto packed = std::size_t((n * s.h * s.w + i) * s.c + c);
        to[back ? plain : packed] = from[back ? packed : plain];
      }
  return to;
}

Results reference(const PoolGeometry& g, const Form& x, const Values& in, const Values& dy) {
  const Reference backend;
  const auto kernel = backend.pool(g, x);
  const Tensor y(kernel->output), dx(x), from = place(backend, x, in);
  Stream stream;
  kernel->forward(stream, from, y);
  kernel->input_grad(stream, from, {}, place(backend, kernel->output, dy), dx);
  return {numbers(y), numbers(dx)};
}

/// The operand of number `unaligned`, of x, y, dy, dx and the workspace, is not aligned.
template <class T>
Results on_gpu(const PoolGeometry& g, const Shape& shape, const Values& in, const Values& dy,
               int unaligned = -1) {
  const cuda::Pool p{dtype_of<T>, g, shape};
  const Shape y_shape = g.output(shape);
  const Values none_x(in.size(), std::nan("")), none_y(dy.size(), std::nan(""));
  Operand<T> x(nhwc(shape, in), unaligned == 0), y(none_y, unaligned == 1),
      gradient(nhwc(y_shape, dy), unaligned == 2), dx(none_x, unaligned == 3);
  const There<std::int32_t> workspace(cuda::pool_workspace(p) / 4 + 2, -1);
  ok(cuda::pool(nullptr, p, x.data(), y.data()));
  const bool max = g.kind == Kind::max;
  ok(cuda::pool_grad(nullptr, p, max ? x.data() : nullptr, gradient.data(), dx.data(),
                     max ? workspace.data() + (unaligned == 4) : nullptr));
  return {nhwc(y_shape, y.values(), true), nhwc(shape, dx.values(), true)};
}

/// Of values of which many are equal, and some are NaN where `nans`.
template <class T>
void compare(const Shape& shape, PoolGeometry g, bool nans = false, int unaligned = -1) {
  for (const auto& [kind, whole] :
       {std::pair{Kind::max, false}, {Kind::average, false}, {Kind::average, true}}) {
    g.kind = kind, g.count_padding = whole;
    CAPTURE(name(dtype_of<T>), shape.text(), int(kind), whole, g.window.text(), g.stride.text(),
            g.pad.text(), g.ceil, nans, unaligned);
    Values x = random_of<T>(std::size_t(shape.size()), 1);
    const Values dy = random_of<T>(std::size_t(g.output(shape).size()), 2);
    if (kind == Kind::max)
      for (double& v : x) v = std::round(2 * v);
    for (std::size_t i = 0; nans && i < x.size(); i += 7) x[i] = std::nan("");
    const Results got = on_gpu<T>(g, shape, x, dy, unaligned);
    const auto right = [&](DType t) { return reference(g, {shape, t, {}}, x, dy); };
    if (kind == Kind::max) {  // in the same order
      CHECK(difference_or_nan(got.y, right(dtype_of<T>).y) == 0);
      CHECK(difference_or_nan(got.dx, right(dtype_of<T>).dx) == 0);
      continue;
    }
    const double added = std::sqrt(double(g.window.h * g.window.w));  // rounded that often
    const double close = (8 + added) * roundoff(dtype_of<Wide<T>>) + roundoff(dtype_of<T>);
    CHECK(difference_or_nan(got.y, right(DType::f64).y) < close);
    CHECK(difference_or_nan(got.dx, right(DType::f64).dx) < close);
  }
}

template <class T>
void compare_all() {
  const PoolGeometry overlapping{.window = 3, .stride = 2, .pad = 1};
  compare<T>({1, 1, 1, 1}, {.window = 1, .stride = 1});
  compare<T>({2, 3, 4, 6}, {});
  compare<T>({3, 17, 13, 11}, overlapping);
  compare<T>({5, 64, 9, 14}, overlapping);
  compare<T>({2, 8, 5, 6}, {.window = {3, 2}, .stride = {2, 1}, .pad = {0, 1, 2, 0}});
  compare<T>({2, 16, 6, 5}, {.window = {2, 5}, .stride = {1, 3}, .pad = {1, 2, 0, 4}});
  compare<T>({1, 8, 5, 5}, {.window = 2, .stride = 2, .pad = 1, .ceil = true});
  compare<T>({2, 3, 6, 5}, {.window = 3, .stride = 2, .ceil = true});
  compare<T>({1, 8, 8, 11}, {.window = 2, .stride = {3, 5}});
  compare<T>({4, 17, 5, 3}, {.window = {5, 3}, .stride = 1});
  compare<T>({1, 8, 12, 9}, {.window = 5, .stride = 1, .pad = 2}, true);
  compare<T>({1, 8, 20, 20}, {.window = {18, 17}, .stride = {1, 2}, .pad = {2, 0}});
  for (int i = 0; i < 5; ++i) compare<T>({1, 16, 5, 7}, overlapping, false, i);
}

}  // namespace

TEST_CASE("pooling on a GPU is that of the reference, in f64") { compare_all<double>(); }
TEST_CASE("pooling on a GPU is that of the reference, in f32") { compare_all<float>(); }
TEST_CASE("pooling on a GPU is that of the reference, in bf16") { compare_all<BF16>(); }
TEST_CASE("pooling on a GPU is that of the reference, in f16") { compare_all<F16>(); }

TEST_CASE("where the largest element of a window on a GPU is, its gradient goes") {
  const double least = -INFINITY, none = std::nan("");
  const PoolGeometry row{.window = {1, 3}, .stride = 3};
  const Values x{least, least, least, /**/ 1, none, none, /**/ 4, 2, 4, /**/ least, -1, -1};
  const Results got = on_gpu<float>(row, {1, 1, 1, 12}, x, {1, 2, 3, 4});
  CHECK(difference_or_nan(got.y, {least, none, 4, -1}) == 0);
  CHECK(got.dx == Values{1, 0, 0, 0, 2, 0, 3, 0, 0, 0, 4, 0});
  // Neither in the padding before it.
  const PoolGeometry padded{.window = 3, .stride = 2, .pad = 1};
  const Results corners = on_gpu<float>(padded, {1, 1, 3, 3}, Values(9, least), {1, 2, 3, 4});
  CHECK(corners.dx == Values{1, 2, 0, 3, 4, 0, 0, 0, 0});
  for (const std::int64_t size : {256, 257}) {  // the numbers that a byte has, and one more
    Values rising(std::size_t(8 * size)), last(rising.size(), 0);
    for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = double(i);
    for (std::size_t c = 1; c <= 8; ++c) last[c * std::size_t(size) - 1] = double(c);
    const PoolGeometry all{.window = {1, size}, .stride = 1};
    CHECK(on_gpu<float>(all, {1, 8, 1, size}, rising, {1, 2, 3, 4, 5, 6, 7, 8}).dx == last);
  }
}

TEST_CASE("samples that are too large for pooling on a GPU are an error") {
  const PoolGeometry padded{.window = 2048, .stride = 1, .pad = 2047};  // 2048x2048 of an element
  for (const cuda::Pool& p : {cuda::Pool{DType::f32, {}, {1, 1, 1 << 16, 1 << 15}},
                              cuda::Pool{DType::f32, padded, {1, 512, 1, 1}}}) {
    CHECK(cuda::pool(nullptr, p, nullptr, nullptr) == cudaErrorInvalidValue);
    CHECK(cuda::pool_grad(nullptr, p, nullptr, nullptr, nullptr, nullptr) == cudaErrorInvalidValue);
  }
}

TEST_CASE("division by a product and a shift is exact") {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  int wrong = 0;
  const auto divide = [&](std::int64_t n, std::int64_t d) {
    if (n >= 0 && n <= most) wrong += cuda::Divisor(d).quotient(int(n)) != n / d;
  };
  for (std::int64_t i = 1; i < 3000; ++i)
    for (const std::int64_t d :
         {i, most / i, most + 1 - i, (std::int64_t(1) << i % 31) - 1 + i % 3})
      for (const std::int64_t multiple : {std::int64_t(1), i, most / std::max<std::int64_t>(d, 1)})
        for (std::int64_t off = -1; d > 0 && d <= most && off <= 1; ++off)
          divide(d * multiple + off, d), divide(most + 1 - off - i, d);
  CHECK(wrong == 0);
}
