// Maximum pooling in every type and layout: exactly what the reference computes, of whole numbers
// among which many are equal.
#include "catch.hpp"
#include "cpu/blocked.hpp"
#include "support/operands.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Results {
  Values y, dx;
  bool operator==(const Results&) const = default;
};

Results pooled(Setup& s, const PoolGeometry& g, const Shape& shape, const Values& in,
               const Values& gradients) {
  const auto kernel = s.backend.pool(g, s.form(shape));
  const Tensor x = s.place(kernel->inputs[0], in), y = dirty(kernel->output);
  const Tensor dy = s.place(kernel->output, gradients), dx = dirty(kernel->inputs[0]);
  kernel->forward(s.stream, x, y);
  kernel->input_grad(s.stream, x, y, dy, dx);
  return {s.read(y), s.read(dx)};
}

/// Calls f(setup) with oneDNN in each type and layout.
template <class F>
void on_onednn(const F& f) {
  if (!has_onednn()) return;
  const auto backend = onednn_backend();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool native : {false, true}) {
      INFO(name(dtype) << (native ? " native" : " plain"));
      Setup s{*backend, dtype, native};
      f(s);
    }
}

/// Values that lie n-c-h-w, n-h-w-c.
Values beside(const Shape& s, const Values& apart) {
  Values to;
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t p = 0; p < s.h * s.w; ++p)
      for (std::int64_t c = 0; c < s.c; ++c)
        to.push_back(apart[std::size_t((n * s.c + c) * s.h * s.w + p)]);
  return to;
}

/// By our kernel for bf16 in n-h-w-c, which lies in forms that do not say so; also the results.
Results pooled_beside(const PoolGeometry& g, const Shape& shape, const Values& in,
                      const Values& gradients) {
  const auto backend = reference_backend();
  const Form form{shape, DType::bf16, {}}, pooled_form{g.output(shape), DType::bf16, {}};
  const auto kernel = lamina::detail::max_pool_beside(g, form, pooled_form);
  const Tensor x = place(*backend, form, beside(shape, in)), y = dirty(pooled_form);
  const Tensor dy = place(*backend, pooled_form, beside(pooled_form.shape, gradients));
  const Tensor dx = dirty(form);
  Stream stream;
  kernel->forward(stream, x, y);
  kernel->input_grad(stream, x, y, dy, dx);
  return {read(*backend, y), read(*backend, dx)};
}

void compare(const PoolGeometry& g, const Shape& shape) {
  INFO(shape.text() << ", window " << g.window.h << 'x' << g.window.w << ", stride " << g.stride.h
                    << ',' << g.stride.w << ", pad " << g.pad.top << ',' << g.pad.left);
  const auto reference = reference_backend();
  Setup exact{*reference, DType::f64, false};
  const Values x = digits(shape.size(), 1, 2), dy = digits(g.output(shape).size(), 2, 1);
  const Results want = pooled(exact, g, shape, x, dy);
  const int before = threads();
  on_onednn([&](Setup& s) {
    for (const int n : {1, 3}) {
      set_threads(n);
      CHECK((pooled(s, g, shape, x, dy) == want));
    }
  });
  const Results want_beside{beside(g.output(shape), want.y), beside(shape, want.dx)};
  for (const int n : {1, 3}) {
    if (g.window.h * g.window.w > 256) continue;  // its places
    set_threads(n);
    CHECK((pooled_beside(g, shape, x, dy) == want_beside));
  }
  set_threads(before);
}

}  // namespace

TEST_CASE("maximum pooling is exact in every type and layout", "[isa]") {
  for (const Shape& shape :
       {Shape{2, 32, 9, 11}, Shape{3, 20, 14, 13}, Shape{1, 16, 33, 65}, Shape{2, 3, 17, 16}})
    for (const Pair window : {Pair(2), Pair(3), Pair{1, 4}, Pair{5, 3}})
      for (const Pair stride : {Pair(1), Pair(2), Pair{3, 1}, Pair(6)})
        for (const Pad pad :
             {Pad(0), Pad{window.h / 2, window.w / 2}, Pad{window.h - 1, 0, 0, window.w - 1}})
          compare({.window = window, .stride = stride, .pad = pad}, shape);
  compare({.window = 3, .stride = 2, .ceil = true}, {2, 32, 10, 12});
}

TEST_CASE("maximum pooling keeps what is not a number, in bf16 where it is ours", "[isa]") {
  const Shape shape = GENERATE(Shape{2, 20, 9, 8}, Shape{4, 32, 1, 1}, Shape{9, 8, 1, 1},
                               Shape{2, 3, 9, 8}, Shape{1, 16, 30, 31});
  const bool small = shape.h < 30;
  const PoolGeometry g{.window = small ? 3 : 17, .stride = small ? 2 : 7, .pad = 1};
  Values x = digits(shape.size(), 1, 2);
  for (std::size_t i = 0; i < x.size(); i += 23) x[i] = std::numeric_limits<double>::quiet_NaN();
  const Values dy = digits(g.output(shape).size(), 2, 1);
  const auto reference = reference_backend();
  Setup exact{*reference, DType::f64, false};
  const Results want = pooled(exact, g, shape, x, dy);
  on_onednn([&](Setup& s) {
    const bool ours = s.backend.pool(g, s.form(shape))->algorithm == "lamina:simd";
    if (!ours && s.dtype == DType::bf16) return;
    const Results got = pooled(s, g, shape, x, dy);
    int alike = 0, nans = 0;
    for (std::size_t i = 0; i < want.y.size(); ++i) {
      nans += std::isnan(want.y[i]);
      alike += std::isnan(want.y[i]) ? std::isnan(got.y[i]) : got.y[i] == want.y[i];
    }
    CHECK(nans > 3);
    CHECK(alike == int(want.y.size()));
    CHECK((got.dx == want.dx));
  });
}

TEST_CASE("plain images of some channels are pooled by our kernel", "[isa]") {
  if (!has_onednn()) return;
  const auto backend = onednn_backend();
  for (const std::int64_t channels : {1, 3, 4, 8, 20}) {
    CAPTURE(channels);
    const auto kernel = backend->pool({}, {{2, channels, 8, 8}, DType::f32, {}});
    CHECK((kernel->algorithm == "lamina:simd") == (channels >= 4));
    CHECK(kernel->inputs[0].layout.plain() == (kernel->algorithm != "lamina:simd"));
  }
}

TEST_CASE("maximum pooling is exact in windows of as many places as a byte numbers", "[isa]") {
  for (const Pair window : {Pair(15), Pair{15, 17}, Pair(16), Pair{17, 16}})
    compare({.window = window, .stride = 9, .pad = 3}, {2, 32, 40, 37});
}

TEST_CASE("maximum pooling in bf16 adds gradients up before it rounds", "[isa]") {
  if (!has_onednn()) return;
  const auto backend = onednn_backend();
  for (const bool native : {false, true}) {
    Setup s{*backend, DType::bf16, native};
    Values x(80, 0), dy(48, 1);
    for (std::size_t c = 0; c < 16; ++c) x[5 * c + 2] = 9, dy[3 * c] = 256;
    const Results got = pooled(s, {.window = Pair{1, 3}, .stride = 1}, {1, 16, 1, 5}, x, dy);
    // After each addition 257 would be rounded to 256.
    CHECK(Values(got.dx.begin(), got.dx.begin() + 5) == Values{0, 0, 258, 0, 0});
  }
}

TEST_CASE("maxima of channels that lie side by side are the first NaN, or the first zero") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const PoolGeometry g{.window = Pair{1, 3}, .stride = Pair{1, 3}};
  const std::vector<std::array<double, 4>> cases = {{1, nan, nan, 1},
                                                    {infinity, -nan, 2, 1},
                                                    {-0.0, 0.0, -1, 0},
                                                    {0.0, -0.0, 0, 0},
                                                    {-3, -2, -5, 1},
                                                    {-infinity, -7, 0, 2},
                                                    {-infinity, -infinity, -infinity, 0}};
  for (const auto& [a, b, c, first] : cases) {
    CAPTURE(a, b, c);
    // More channels than are taken at a time, all alike.
    const std::int64_t channels = 1030;
    Values x, dy(channels, 3), want_dx;
    for (std::int64_t i = 0; i < channels; ++i) x.insert(x.end(), {a, b, c});
    const Results got = pooled_beside(g, {1, channels, 1, 3}, x, dy);
    const double largest = std::array{a, b, c}[std::size_t(first)];
    for (const double y : got.y) CHECK((std::isnan(largest) ? std::isnan(y) : y == largest));
    for (int place = 0; place < 3; ++place)
      for (std::int64_t i = 0; i < channels; ++i) want_dx.push_back(place == int(first) ? 3 : 0);
    CHECK((got.dx == want_dx));
  }
}
