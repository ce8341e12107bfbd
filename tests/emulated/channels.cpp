// Local response normalisation and softmax against the reference in f64.
#include "kernels/channels.hpp"

#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  std::int64_t rows;
  int channels;
  LrnGeometry lrn = {};
};

struct Results {
  Values y, dx;
};

/// Of x[rows][channels], by a kernel that the reference makes; what it reads of y is `given`.
Results reference(const Case& c, UnaryKernel& kernel, const Values& x, const Values& given,
                  const Values& dy) {
  const Form form{{c.rows, c.channels, 1, 1}, DType::f64, {}};
  const Reference backend;
  const Tensor y(form), dx(form);
  Stream stream;
  kernel.forward(stream, place(backend, form, x), y);
  const Tensor y_given = given.empty() ? Tensor(form) : place(backend, form, given);
  kernel.input_grad(stream, place(backend, form, x), y_given, place(backend, form, dy), dx);
  return {numbers(y), numbers(dx)};
}
Results reference_lrn(const Case& c, const Values& x, const Values& dy) {
  return reference(c, *Reference().lrn(c.lrn, {{c.rows, c.channels, 1, 1}, DType::f64, {}}), x, {},
                   dy);
}
Results reference_softmax(const Case& c, const Values& x, const Values& y, const Values& dy) {
  return reference(c, *Reference().softmax({{c.rows, c.channels, 1, 1}, DType::f64, {}}), x, y, dy);
}

template <class T>
void compare_lrn(const Case& c) {
  CAPTURE(name(dtype_of<T>), c.rows, c.channels, c.lrn.size, c.lrn.beta);
  const auto count = std::size_t(c.rows * c.channels);
  const Values x = random_of<T>(count, 1), dy = random_of<T>(count, 2);
  const auto from = there<T>(x), gradients = there<T>(dy);
  const There<T> y(count, T(std::nan(""))), dx = y;
  const cuda::Lrn l{dtype_of<T>, c.rows, c.channels, c.lrn};
  ok(cuda::lrn(nullptr, l, from.data(), y.data()));
  ok(cuda::lrn_grad(nullptr, l, from.data(), gradients.data(), dx.data()));
  const Results right = reference_lrn(c, x, dy);
  const double close = 16 * roundoff(dtype_of<Wide<T>>) + roundoff(dtype_of<T>);
  CHECK(difference(wide(y), right.y) < close);
  CHECK(difference(wide(dx), right.dx) < 4 * close);
}

template <class T>
void compare_lrns() {
  for (const Case& c :
       {Case{1, 1, {5, 0.9, 0.75, 2}}, Case{5, 3, {3, 1.5, 0.5, 1}}, Case{9, 8, {1, 0.7, 0.75, 2}},
        Case{613, 17, {5, 0.9, 0.75, 2}}, Case{67, 64, {7, 2, 1.25, 0.5}},
        Case{50, 96, {5, 1e-4, 0.75, 1}}, Case{300, 12, {31, 3, 0.75, 1}},
        Case{2, 600, {999, 9, 0.75, 2}}, Case{3, 1030, {5, 0.9, 0.75, 2}}})
    compare_lrn<T>(c);
}

template <class T>
void compare_softmax(const Case& c) {
  CAPTURE(name(dtype_of<T>), c.rows, c.channels);
  const auto count = std::size_t(c.rows * c.channels);
  const Values x = rounded(random_of<T>(count, 1, 1), dtype_of<T>), dy = random_of<T>(count, 2);
  const auto y = there<T>(x), dx = there<T>(dy);  // in place
  ok(cuda::softmax(nullptr, dtype_of<T>, c.rows, c.channels, y.data(), y.data()));
  ok(cuda::softmax_grad(nullptr, dtype_of<T>, c.rows, c.channels, y.data(), dx.data(), dx.data()));
  const Results right = reference_softmax(c, x, wide(y), dy);
  const double close = 16 * roundoff(dtype_of<Wide<T>>) + roundoff(dtype_of<T>);
  CHECK(difference(wide(y), right.y) < close);
  // Of one channel it is a difference of nothing.
  CHECK(difference(wide(dx), right.dx, c.channels == 1 ? 1 : 0) < 4 * close);
}

template <class T>
void compare_softmaxes() {
  for (const Case& c : {Case{1, 1}, Case{3, 10}, Case{67, 33}, Case{9, 1000}, Case{25, 32}})
    compare_softmax<T>(c);
}

}  // namespace

TEST_CASE("local response normalisation on a GPU is that of the reference") {
  compare_lrns<double>(), compare_lrns<float>(), compare_lrns<BF16>(), compare_lrns<F16>();
}

TEST_CASE("local response normalisation on a GPU takes so many neighbours and no more") {
  const There<float> x(1200, 1), dx(x.size());
  const auto grad = [&](std::int64_t size) {
    return cuda::lrn_grad(nullptr, {DType::f32, 2, 600, {.size = size}}, x.data(), x.data(),
                          dx.data());
  };
  CHECK(grad(2 * cuda::most_neighbours + 1) == cudaSuccess);
  CHECK(grad(2 * cuda::most_neighbours + 3) == cudaErrorInvalidValue);
}

TEST_CASE(
    "numbers that are none do to local response normalisation what they do to the reference") {
  Values x = random_of<double>(40, 1);
  x[3] = std::nan(""), x[27] = INFINITY;
  const Case c{4, 10, {5, 0.9, 0.75, 2}};
  const Values dy = random_of<double>(40, 2);
  const There<double> y(40), dx(40);
  const cuda::Lrn l{DType::f64, c.rows, c.channels, c.lrn};
  const There<double> from(x), gradients(dy);
  ok(cuda::lrn(nullptr, l, from.data(), y.data()));
  ok(cuda::lrn_grad(nullptr, l, from.data(), gradients.data(), dx.data()));
  const Results right = reference_lrn(c, x, dy);
  CHECK(difference_or_nan(y.back(), right.y) < 1e-13);
  CHECK(difference_or_nan(dx.back(), right.dx) < 1e-13);
}

TEST_CASE("softmax on a GPU is that of the reference") {
  compare_softmaxes<double>(), compare_softmaxes<float>();
  compare_softmaxes<BF16>(), compare_softmaxes<F16>();
}

TEST_CASE("numbers that are none do to softmax on a GPU what they do to the reference") {
  const double none = std::nan(""), infinity = INFINITY;
  const Case c{5, 3};
  const Values x{none,           1, 2, /**/ 1,         none,      2,        /**/ infinity, 0, 1,
                 /**/ -infinity, 0, 1, /**/ -infinity, -infinity, -infinity};
  const Values dy = random_of<double>(15, 2);
  const There<double> from(x), gradients(dy), y(15), dx(15);
  ok(cuda::softmax(nullptr, DType::f64, c.rows, c.channels, from.data(), y.data()));
  ok(cuda::softmax_grad(nullptr, DType::f64, c.rows, c.channels, y.data(), gradients.data(),
                        dx.data()));
  const Results right = reference_softmax(c, x, y.back(), dy);
  CHECK(difference_or_nan(y.back(), right.y) < 1e-15);
  CHECK(difference_or_nan(dx.back(), right.dx) < 1e-15);
}
