// Batch norm where the channels of a pixel lie side by side: as where they lie apart.
#include "../../src/cpu/blocked.hpp"
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Results {
  Tensor sums, dots, y, dx, dadded;
};

const Epilogue epilogues[] = {
    {},
    {.activation = Activation{Activation::Kind::relu}},
    {.add = true, .activation = Activation{Activation::Kind::leaky_relu, 0.25}}};

/// All that the kernel computes of values that lie as `block` says, with means and factors of our
/// own, so that they do not depend on the sums.
Results run(const Form& form, int block, const Epilogue& e, const Tensor& x, const Tensor& dy) {
  const std::int64_t c = form.shape.c;
  const Form vector{{1, c, 1, 1}, DType::f32, {}}, wide{{1, c, 1, 1}, DType::f64, {}};
  const Form both{{1, 2 * c, 1, 1}, DType::f64, {}};
  const auto backend = reference_backend();
  const Tensor mean = place(*backend, wide, random_values(c, 1));
  const Tensor inv_std = place(*backend, wide, random_values(c, 2));
  const Tensor w = place(*backend, vector, random_values(c, 3));
  const Tensor b = place(*backend, vector, random_values(c, 4));
  const Tensor given = place(*backend, both, random_values(2 * c, 5));
  detail::BlockedNorm kernel(form, block, e);
  Results r{dirty(both), dirty(both), dirty(form), dirty(form), dirty(form)};
  const Tensor signs = e.activation ? dirty(kernel.signs) : Tensor();
  const View none, kept = e.add && e.activation ? r.dadded.view() : none;
  Stream stream;
  kernel.statistics(stream, x, r.sums);
  kernel.normalize(stream, x, mean, inv_std, w, b, r.y, e.add ? dy.view() : none, signs);
  kernel.gradients(stream, x, mean, inv_std, dy, r.dots, none, none, signs, kept, none);
  kernel.input_grad(stream, x, mean, inv_std, w, dy, given, double(form.shape.size() / c), r.dx,
                    signs);
  if (!kept) r.dadded = Tensor(form);
  return r;
}

/// Values that lie n-c-h-w, n-h-w-c, or the other way.
template <class T>
Tensor turned(const Tensor& from, bool back = false) {
  const Shape s = from.shape();
  Tensor to(from.view().form());
  for (std::int64_t n = 0, at = 0; n < s.n; ++n)
    for (std::int64_t p = 0; p < s.h * s.w; ++p)
      for (std::int64_t c = 0; c < s.c; ++c, ++at) {
        const std::int64_t apart = (n * s.c + c) * s.h * s.w + p;
        to.as<T>()[back ? apart : at] = from.as<T>()[back ? at : apart];
      }
  return to;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.view().data, b.view().data, a.bytes()) == 0;
}

template <class T>
void check_beside(DType dtype, const Shape& shape) {
  const Form form{shape, dtype, {}};
  const auto backend = reference_backend();
  const auto f32 = [&](int seed) { return random_values(shape.size(), seed); };
  Tensor x(form), dy(form);
  for (Tensor* t : {&x, &dy})
    for (std::int64_t i = 0; const double v : f32(t == &x ? 6 : 7)) t->as<T>()[i++] = T(float(v));
  const Tensor beside_x = turned<T>(x), beside_dy = turned<T>(dy);
  for (const Epilogue& e : epilogues) {
    INFO(shape.text() << ' ' << name(dtype) << (e.add ? ", add" : "") << ", slope " << e.slope());
    const Results apart = run(form, 1, e, x, dy), beside = run(form, 0, e, beside_x, beside_dy);
    CHECK(same(turned<T>(beside.y, true), apart.y));
    CHECK(same(turned<T>(beside.dx, true), apart.dx));
    CHECK(same(turned<T>(beside.dadded, true), apart.dadded));
    const double tolerance = dtype == DType::f32 ? 1e-12 : 1e-5;
    CHECK(difference(read(*backend, beside.sums), read(*backend, apart.sums)) < tolerance);
    CHECK(difference(read(*backend, beside.dots), read(*backend, apart.dots)) < tolerance);

    const int before = threads();
    set_threads(before == 3 ? 2 : 3);
    const Results again = run(form, 0, e, beside_x, beside_dy);
    set_threads(before);
    CHECK(same(again.sums, beside.sums));
    CHECK(same(again.dots, beside.dots));
    CHECK(same(again.dx, beside.dx));
  }
}

}  // namespace

TEST_CASE("batch norm on n-h-w-c is that on n-c-h-w", "[isa]") {
  const Shape shapes[] = {{3, 16, 5, 7},   {2, 32, 8, 8},
                          {4, 64, 43, 61},    // several pieces, whose sums go to f64 at times
                          {2, 2048, 3, 3},    // several bands
                          {2, 1040, 8, 9},    // a band of channels and a bit, of several pieces
                          {2, 65552, 1, 2}};  // more bands than pixels
  for (const Shape& shape : shapes) {
    check_beside<float>(DType::f32, shape);
    check_beside<BF16>(DType::bf16, shape);
  }
}
