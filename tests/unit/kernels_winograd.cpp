// Winograd's convolution for AVX2 by itself: every padding and every remainder of tiles, blocks of
// channels and chunks, whether or not the back end would choose it there.
#include "catch.hpp"
#include "cpu/winograd.hpp"
#include "support/operands.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>

using namespace lamina;
using namespace lamina::test;
using lamina::detail::Winograd;

namespace {

struct Results {
  Values y, dx, dw, db;
};

struct Operands {
  Values x, w, b, dy;
  Operands(const ConvGeometry& g, const Shape& s)
      : x(random_values(s.size(), 1)),
        w(random_values(g.weight(s).size(), 2)),
        b(random_values(g.channels, 3)),
        dy(random_values(g.output(s).size(), 4)) {}
};

Results by_reference(const ConvGeometry& g, const Shape& shape, const Operands& in) {
  const auto backend = reference_backend();
  const auto kernel = backend->conv(g, {shape, DType::f64, {}});
  const auto put = [&](const Form& f, const Values& v) { return place(*backend, f, v); };
  const Tensor x = put(kernel->inputs[0], in.x), w = put(kernel->w, in.w);
  const Tensor b = put(kernel->b, in.b), dy = put(kernel->output, in.dy);
  const Tensor y(kernel->output), dx(kernel->inputs[0]), dw(kernel->w), db(kernel->b);
  Stream stream;
  kernel->forward(stream, x, w, b, y);
  kernel->input_grad(stream, w, dy, dx);
  kernel->weight_grad(stream, x, dy, dw, db);
  return {read(*backend, y), read(*backend, dx), read(*backend, dw), read(*backend, db)};
}

/// Where an element of n-c-h-w lies among blocks of eight channels.
std::int64_t in_blocks(const Shape& s, std::int64_t i) {
  const std::int64_t pixels = s.h * s.w, pixel = i % pixels, c = i / pixels % s.c;
  return ((i / pixels / s.c * ((s.c + 7) / 8) + c / 8) * pixels + pixel) * 8 + c % 8;
}
/// The same for weights, whose input and output channels both are in blocks.
std::int64_t weight_in_blocks(const Shape& s, std::int64_t i) {
  const std::int64_t c = i / 9 % s.c, k = i / 9 / s.c;
  return ((k / 8 * ((s.c + 7) / 8) + c / 8) * 9 + i % 9) * 64 + c % 8 * 8 + k % 8;
}
std::int64_t padded(std::int64_t channels) { return (channels + 7) / 8 * 8; }

/// Memory in blocks; what is read back must have zeros wherever there is padding.
struct Blocked {
  Tensor memory;
  Shape shape;
  std::int64_t (*at)(const Shape&, std::int64_t);

  Blocked(const Shape& s, std::int64_t floats, std::int64_t (*at_)(const Shape&, std::int64_t))
      : memory({1, 1, 1, floats}, DType::f32), shape(s), at(at_) {}
  float* data() const { return memory.as<float>(); }
  void put(const Values& v) const {
    for (std::int64_t i = 0; i < shape.size(); ++i) data()[at(shape, i)] = float(v[std::size_t(i)]);
  }
  Values take() const {
    Values v;
    for (std::int64_t i = 0; i < shape.size(); ++i) {
      v.push_back(std::exchange(data()[at(shape, i)], 0.0f));
    }
    std::int64_t dirty = 0;
    for (const float rest : memory.elements<float>()) dirty += rest != 0;
    CHECK(dirty == 0);
    return v;
  }
};
Blocked image(const Shape& s) { return {s, s.n * padded(s.c) * s.h * s.w, in_blocks}; }
Blocked weights(const Shape& s) { return {s, padded(s.n) * padded(s.c) * 9, weight_in_blocks}; }

Results by_winograd(const ConvGeometry& g, const Shape& shape, const Operands& in) {
  const Winograd kernel(g, shape);
  const Blocked x = image(shape), dx = image(shape), y = image(g.output(shape));
  const Blocked dy = image(g.output(shape)), w = weights(g.weight(shape));
  const Blocked dw = weights(g.weight(shape));
  x.put(in.x), w.put(in.w), dy.put(in.dy);
  std::vector<float> b(in.b.begin(), in.b.end()), db(b.size());
  const Tensor scratch =
      dirty({{1, 1, 1, std::int64_t(kernel.scratch() / sizeof(float))}, DType::f32, {}});
  float* memory = scratch.as<float>();
  for (const Blocked* out : {&dx, &y, &dw}) {
    std::memset(out->data(), 0xFF, out->memory.bytes());
  }
  kernel.forward(x.data(), w.data(), {b.data()}, y.data(), memory);
  kernel.input_grad(w.data(), dy.data(), dx.data(), memory);
  kernel.weight_grad(x.data(), dy.data(), dw.data(), db.data(), memory);
  return {y.take(), dx.take(), dw.take(), Values(db.begin(), db.end())};
}

/// Forward alone: with its ending, from weights as they are, or `prepared` for tiles of that size.
Values ended(const ConvGeometry& g, const Shape& shape, const Operands& in, const Values& added,
             bool bias, float slope, int prepared = 0) {
  const Winograd kernel(g, shape, prepared ? prepared : 4);
  const Blocked x = image(shape), y = image(g.output(shape)), w = weights(g.weight(shape));
  x.put(in.x), w.put(in.w);
  std::memset(y.data(), added.empty() ? 0xFF : 0, y.memory.bytes());
  if (!added.empty()) y.put(added);
  const std::vector<float> b(in.b.begin(), in.b.end());
  const auto floats = [](std::size_t n) {
    return dirty({{1, 1, 1, std::int64_t(n)}, DType::f32, {}});
  };
  const Tensor scratch =
      floats((prepared ? kernel.prepared_scratch() : kernel.scratch()) / sizeof(float));
  const Winograd::Ending ending{bias ? b.data() : nullptr, !added.empty(), slope};
  if (!prepared) {
    kernel.forward(x.data(), w.data(), ending, y.data(), scratch.as<float>());
    return y.take();
  }
  const Tensor once = floats(std::size_t(kernel.prepared_size()));
  kernel.prepare(w.data(), once.as<float>());
  kernel.forward_prepared(x.data(), once.as<float>(), ending, y.data(), scratch.as<float>());
  return y.take();
}

ConvGeometry geometry(std::int64_t channels, Pad pad) {
  ConvGeometry g;
  g.channels = channels, g.kernel = 3, g.pad = pad;
  return g;
}

void compare(const ConvGeometry& g, const Shape& x) {
  CAPTURE(x.text(), g.channels, g.pad.top, g.pad.left, g.pad.bottom, g.pad.right);
  const Operands in(g, x);
  const Results want = by_reference(g, x, in), got = by_winograd(g, x, in);
  // The transforms amplify rounding by one digit.
  CHECK(difference(got.y, want.y) < 1e-4);
  CHECK(difference(got.dx, want.dx) < 1e-4);
  CHECK(difference(got.dw, want.dw) < 1e-4);
  CHECK(difference(got.db, want.db) < 1e-5);
  CHECK(ended(g, x, in, {}, true, 1, 4) == got.y);
  CHECK(difference(ended(g, x, in, {}, true, 1, 2), want.y) < 1e-4);
}

/// The largest difference, relative to the largest value: what backends.md says is half of it.
constexpr double error_bound = 4e-5;
double relative_error(const Values& got, const Values& want) {
  double largest = 0;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  return difference(got, want, largest);
}

/// And says so where it is not.
bool available() {
  if (!Winograd::available()) WARN("the processor has no AVX2, for Winograd: nothing to test");
  return Winograd::available();
}

}  // namespace

TEST_CASE("Winograd's convolution is right with any padding") {
  if (!available()) return;
  for (const std::int64_t top : {0, 1, 2})
    for (const std::int64_t left : {0, 1, 2})
      for (const std::int64_t bottom : {0, 1, 2})
        for (const std::int64_t right : {0, 1, 2})
          compare(geometry(8, {top, left, bottom, right}), {1, 8, 3 + top * left, 9 - bottom});
  compare(geometry(8, {5, 3, 0, 4}), {1, 8, 4, 6});
}

TEST_CASE("Winograd's convolution is right at the ends of tiles, blocks and chunks") {
  if (!available()) return;
  const int before = threads(), now = GENERATE(1, 2);
  set_threads(now);
  for (std::int64_t size = 3; size <= 9; ++size) {
    compare(geometry(8, {0, 1, 1, 0}), {2, 16, size, 12 - size});
  }
  compare(geometry(20, 1), {2, 13, 6, 5});  // channels that do not fill their blocks
  compare(geometry(24, 1), {1, 40, 7, 7});  // odd numbers of blocks
  compare(geometry(8, 1), {1, 264, 5, 6});  // more channels than a step of the products takes
  compare(geometry(264, 1), {1, 8, 5, 6});  // the same for the input gradient
  compare(geometry(8, 1), {3, 8, 30, 27});  // several chunks
  compare(geometry(16, {1, 1, 0, 1}), {16, 16, 17, 32});
  set_threads(before);
}

TEST_CASE("Winograd's convolution ends with what is added and a rectifier") {
  if (!available()) return;
  const float slope = GENERATE(1.0f, 0.0f, 0.25f);
  const bool add = GENERATE(false, true), bias = GENERATE(false, true);
  CAPTURE(slope, add, bias);
  const ConvGeometry g = geometry(20, {1, 0, 2, 1});
  const Shape x{2, 24, 9, 7}, y = g.output(x);
  const Operands in(g, x);
  const Values added = add ? random_values(y.size(), 5) : Values();
  Values want = by_reference(g, x, in).y;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    double& v = want[std::size_t(i)];
    if (!bias) v -= in.b[std::size_t(i / (y.h * y.w) % y.c)];
    if (add) v += added[std::size_t(i)];
    if (v < 0) v *= double(slope);
  }
  const Values each_time = ended(g, x, in, added, bias, slope);
  CHECK(difference(each_time, want) < 1e-4);
  CHECK(ended(g, x, in, added, bias, slope, 4) == each_time);
  CHECK(difference(ended(g, x, in, added, bias, slope, 2), want) < 1e-4);
}

TEST_CASE("Winograd's rectifier leaves what is not a number") {
  if (!available()) return;
  const ConvGeometry g = geometry(8, 1);
  const Shape x{1, 8, 12, 12};
  Operands in(g, x);
  in.x[0] = std::numeric_limits<double>::quiet_NaN();
  for (const int prepared : {0, 4, 2}) {
    const Values y = ended(g, x, in, {}, true, 0, prepared);
    // The first tile sees it, in every channel.
    const std::size_t tile = prepared == 2 ? 2 : 4;
    for (std::size_t i = 0; i < y.size(); ++i)
      CHECK(std::isnan(y[i]) == (i / 12 % 12 < tile && i % 12 < tile));
  }
}

TEST_CASE("the transforms of Winograd's convolution amplify rounding within a bound") {
  if (!available()) return;
  for (const std::int64_t channels : {64, 128, 256, 512}) {
    CAPTURE(channels);
    const ConvGeometry g = geometry(channels, 1);
    const Shape x{1, channels, 14, 14};
    const Operands in(g, x);
    const Results want = by_reference(g, x, in), got = by_winograd(g, x, in);
    CHECK(relative_error(got.y, want.y) < error_bound);
    CHECK(relative_error(got.dx, want.dx) < error_bound);
    CHECK(relative_error(got.dw, want.dw) < error_bound);
    const Values by_2x2 = ended(g, x, in, {}, true, 1, 2);
    CHECK(relative_error(by_2x2, want.y) < error_bound / 4);
  }
}

TEST_CASE("Winograd's convolution does not depend on the number of threads") {
  if (!available()) return;
  const ConvGeometry g = geometry(24, {1, 0, 2, 1});
  const Shape x{3, 16, 29, 26};
  const Operands in(g, x);
  const int before = threads();
  set_threads(1);
  const Results one = by_winograd(g, x, in);
  const Values prepared_by_one = ended(g, x, in, {}, true, 0, 2);
  set_threads(3);
  const Results three = by_winograd(g, x, in);
  const Values prepared_by_three = ended(g, x, in, {}, true, 0, 2);
  set_threads(before);
  CHECK(one.y == three.y);
  CHECK(one.dx == three.dx);
  CHECK(one.dw == three.dw);
  CHECK(one.db == three.db);
  CHECK(prepared_by_one == prepared_by_three);
}
