// Convolutions in bf16 by tiles (AMX): y and dx in whole numbers, whose sums are exact in any
// order, at every remainder of tiles, bands of rows and phases of a stride.
#include "catch.hpp"
#include "cpu/tile_conv.hpp"
#include "support/operands.hpp"
#include "support/tiles.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/plain_weights.hpp>

#include <limits>
#include <ostream>
#include <set>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr const char* tiles = lamina::detail::TileConv::name;

/// Which passes are computed by tiles.
struct By {
  bool y, dx;
  bool operator==(const By&) const = default;
  friend std::ostream& operator<<(std::ostream& to, const By& by) {
    return to << "y " << by.y << ", dx " << by.dx;
  }
};
By by(const WeightedKernel& kernel) {
  const std::string& all = kernel.algorithm;
  const std::string behind = all.substr(all.find('|') + 1);
  return {all.starts_with(tiles), behind.starts_with(tiles)};
}

struct Results {
  Values y, dx;
  bool operator==(const Results&) const = default;
};

/// With `in_place` what is added is where y will be.
Results results(const Backend& on, WeightedKernel& kernel, const ConvGeometry& g, const Epilogue& e,
                bool in_place = false) {
  const Shape x = kernel.inputs[0].shape, y = kernel.output.shape;
  const Tensor w = place(on, kernel.w, digits(g.weight(x).size(), 2));
  const Tensor b = g.bias ? place(on, kernel.b, digits(g.channels, 3)) : Tensor();
  const Tensor added = e.add ? place(on, kernel.output, digits(y.size(), 5)) : Tensor();
  const Tensor y_ = dirty(kernel.output), dx = dirty(kernel.inputs[0]);
  const View to = in_place ? added.view() : y_.view();
  Stream stream;
  kernel.forward(stream, place(on, kernel.inputs[0], digits(x.size(), 1)), w, b, to, added);
  kernel.input_grad(stream, w, place(on, kernel.output, digits(y.size(), 4)), dx);
  return {read(on, to), read(on, dx)};
}

/// Sums of whole numbers are exact in f32: what is left is to round them once.
By compare(const ConvGeometry& g, const Shape& x, const Epilogue& e = {}) {
  INFO(x.text() << ", " << g.channels << " channels, kernel " << g.kernel.text() << ", stride "
                << g.stride.text() << ", pad " << g.pad.text() << ", dilation " << g.dilation.text()
                << (e.add ? ", sum" : "") << ", slope " << e.slope());
  const auto reference = reference_backend(), backend = onednn_backend({.only = tiles});
  const auto exact = reference->conv(g, {x, DType::f64, {}}, e);
  Results want = results(*reference, *exact, g, e);
  want = {rounded(want.y, DType::bf16), rounded(want.dx, DType::bf16)};
  By taken{};
  const int before = threads();
  for (const int n : {1, 2, 5}) {
    set_threads(n);
    const auto kernel = backend->conv(g, {x, DType::bf16, {}}, e);
    taken = by(*kernel);
    if (!taken.y && !taken.dx) break;
    const Results got = results(*backend, *kernel, g, e);
    if (taken.y) CHECK((got.y == want.y));
    if (taken.dx) CHECK((got.dx == want.dx));
    if (taken.y && e.add) CHECK((results(*backend, *kernel, g, e, true).y == want.y));
  }
  set_threads(before);
  return taken;
}

Epilogue relu(bool add, double slope = 0) {
  using Kind = Activation::Kind;
  Activation a{.kind = slope == 0 ? Kind::relu : Kind::leaky_relu};
  a.slope = slope;
  return {.add = add, .activation = a};
}

}  // namespace

TEST_CASE("convolutions by tiles are the reference's, from one position to several bands") {
  if (!tiles_available()) return;
  for (const auto& [n, h, w] : {std::array{1, 1, 1},
                                {3, 1, 1},
                                {1, 1, 15},
                                {1, 4, 4},
                                {1, 1, 17},
                                {5, 7, 7},
                                {2, 14, 14},
                                {3, 13, 40},
                                {1, 1, 600},
                                {7, 9, 11}})
    for (const std::int64_t window : {1, 3}) {
      const ConvGeometry g{.channels = 64, .kernel = window, .pad = window / 2, .bias = n > 1};
      CHECK(compare(g, {n, 32, h, w}) == By{true, true});
    }
  // Rows that do not fit a band, in parts of unlike size, with and without a stride.
  for (const std::int64_t stride : {1, 2}) {
    const ConvGeometry g{.channels = 32, .kernel = 3, .stride = stride, .pad = 1};
    CHECK(compare(g, {2, 64, 67, 131}) == By{true, true});
  }
}

TEST_CASE("convolutions by tiles have channels in any number of tiles") {
  if (!tiles_available()) return;
  for (const std::int64_t in : {32, 96, 160, 512})
    for (const std::int64_t out : {32, 64, 96, 288}) {
      const ConvGeometry g{.channels = out, .kernel = in % 64 ? 3 : 1, .pad = 0};
      CHECK(compare(g, {2, in, 6, 5}) == By{true, true});
    }
  // Weights of more than a look at a band takes.
  CHECK(compare({.channels = 288, .kernel = 3, .pad = 1}, {2, 512, 5, 5}) == By{true, true});
  // Those that do not come in whole tiles are left to oneDNN.
  CHECK(compare({.channels = 48}, {2, 32, 6, 6}) == By{false, false});
  CHECK(compare({.channels = 32}, {2, 48, 6, 6}) == By{false, false});
  CHECK(compare({.channels = 64, .kernel = 1, .groups = 2}, {2, 64, 6, 6}) == By{false, false});
}

TEST_CASE("convolutions by tiles know windows, strides, paddings and dilations") {
  if (!tiles_available()) return;
  const Shape image{3, 32, 11, 14};
  int y = 0, dx = 0;
  const auto count = [&](const ConvGeometry& g) {
    const By taken = compare(g, image);
    y += taken.y, dx += taken.dx;
  };
  for (const Pair kernel : {Pair(2), Pair(3), Pair{1, 3}, Pair{3, 1}, Pair(5), Pair(7)})
    for (const Pair stride : {Pair(1), Pair(2), Pair(3), Pair{2, 1}, Pair{1, 3}})
      for (const Pad pad : {Pad(0), Pad(1), Pad(3), Pad{0, 1, 2, 0}, Pad{2, 0, 0, 1}}) {
        ConvGeometry g{.channels = 64, .kernel = kernel, .stride = stride, .pad = pad};
        count(g);
        g.dilation = 2;
        if (kernel == Pair(3)) count(g);
      }
  CHECK(y > 100);
  CHECK(dx > 90);
}

TEST_CASE("convolutions by tiles add, and bend what is below zero") {
  if (!tiles_available()) return;
  for (const std::int64_t window : {1, 3})
    for (const bool bias : {false, true}) {
      const ConvGeometry g{.channels = 64, .kernel = window, .pad = window / 2, .bias = bias};
      for (const Epilogue& e :
           {Epilogue{.add = true}, relu(false), relu(true), relu(true, 0.25), relu(false, -2)})
        CHECK(compare(g, {2, 32, 9, 7}, e).y);
    }
}

TEST_CASE("convolutions by tiles take weights plain") {
  if (!tiles_available()) return;
  const ConvGeometry g{.channels = 96, .kernel = 3, .pad = 1};
  const Shape x{2, 64, 9, 9};
  const auto reference = reference_backend(), backend = onednn_backend({.only = tiles});
  const auto exact = reference->conv(g, {x, DType::f64, {}});
  auto made = backend->conv(g, {x, DType::bf16, {}});
  REQUIRE(by(*made) == By{true, true});
  const auto kernel = with_plain_weights(*backend, std::move(made), DType::f32);
  CHECK(kernel->w.layout.plain());
  const Results want = results(*reference, *exact, g, {}), got = results(*backend, *kernel, g, {});
  CHECK((got.y == rounded(want.y, DType::bf16)));
  CHECK((got.dx == rounded(want.dx, DType::bf16)));
}

TEST_CASE("convolutions by tiles run on more threads or fewer than they were made for") {
  if (!tiles_available()) return;
  const ConvGeometry g{.channels = 64, .kernel = 3, .pad = 1};
  const Shape x{9, 64, 20, 20};
  const int before = threads();
  set_threads(2);
  const auto backend = onednn_backend({.only = tiles});
  const auto kernel = backend->conv(g, {x, DType::bf16, {}});
  REQUIRE(by(*kernel) == By{true, true});
  const Results want = results(*backend, *kernel, g, {});
  for (const int n : {1, 5}) {
    set_threads(n);
    CHECK((results(*backend, *kernel, g, {}) == want));
  }
  set_threads(before);
}

TEST_CASE("convolutions by tiles keep what is not a number, and make none of infinities") {
  if (!tiles_available()) return;
  const double slope = GENERATE(0, 0.25);
  const ConvGeometry g{.channels = 32, .bias = false};
  const auto backend = onednn_backend({.only = tiles});
  const auto kernel = backend->conv(g, {{1, 32, 1, 4}, DType::bf16, {}}, relu(false, slope));
  REQUIRE(by(*kernel).y);
  Values x(32 * 4), w(32 * 32, 1);
  x[0] = std::numeric_limits<double>::quiet_NaN();
  x[1] = std::numeric_limits<double>::infinity();
  x[2] = -x[1];
  x[3] = -1;
  const Tensor y = dirty(kernel->output);
  Stream stream;
  kernel->forward(stream, place(*backend, kernel->inputs[0], x), place(*backend, kernel->w, w), {},
                  y, {});
  const Tensor plain(kernel->output.shape, DType::bf16);
  backend->copy(y, plain);
  const Values got = numbers(plain);
  CHECK(std::isnan(got[0]));
  CHECK(got[1] == x[1]);
  CHECK(got[2] == (slope == 0 ? 0 : x[2]));
  CHECK(got[3] == -slope);
  CHECK((slope != 0 || !std::signbit(got[3])));
}

TEST_CASE("convolutions by tiles have the same bits with any number of threads") {
  if (!tiles_available()) return;
  const ConvGeometry g{.channels = 288, .kernel = 3, .stride = 2, .pad = 1};
  const Shape x{4, 160, 29, 29};
  const Values image = random_values(x.size(), 1), weights = random_values(288 * 160 * 9, 2);
  std::set<Values> different;
  const int before = threads();
  for (const int n : {1, 2, 3, 7}) {
    set_threads(n);
    const auto backend = onednn_backend({.only = tiles});
    const auto kernel = backend->conv(g, {x, DType::bf16, {}});
    REQUIRE(by(*kernel) == By{true, true});
    const Tensor w = place(*backend, kernel->w, weights), y = dirty(kernel->output);
    const Tensor b = place(*backend, kernel->b, Values(288)), dx = dirty(kernel->inputs[0]);
    Stream stream;
    kernel->forward(stream, place(*backend, kernel->inputs[0], image), w, b, y, {});
    kernel->input_grad(stream, w, y, dx);
    Values both = read(*backend, y);
    for (const double v : read(*backend, dx)) both.push_back(v);
    different.insert(both);
  }
  set_threads(before);
  CHECK(different.size() == 1);
}

TEST_CASE("convolutions are left to oneDNN where its kernels are faster") {
  if (!tiles_available()) return;
  const auto taken = [](const Shape& x, std::int64_t channels, std::int64_t window,
                        std::int64_t stride) {
    const ConvGeometry g{
        .channels = channels, .kernel = window, .stride = stride, .pad = window / 2};
    return by(*onednn_backend()->conv(g, {x, DType::bf16, {}}));
  };
  CHECK(taken({16, 512, 7, 7}, 512, 3, 1) == By{true, true});
  CHECK(taken({16, 512, 14, 14}, 512, 3, 2) == By{true, true});
  CHECK(taken({16, 512, 8, 8}, 512, 3, 1) == By{true, true});
  CHECK(taken({16, 512, 9, 9}, 512, 3, 1) == By{false, true});
  CHECK(taken({6, 512, 7, 7}, 512, 3, 1) == By{true, true});
  CHECK(taken({5, 512, 7, 7}, 512, 3, 1) == By{false, true});
  CHECK(taken({16, 256, 15, 15}, 256, 3, 1) == By{false, false});
  CHECK(taken({16, 256, 14, 14}, 1024, 1, 1) == By{false, true});
  CHECK(taken({16, 128, 56, 56}, 128, 3, 2) == By{false, true});
  CHECK(taken({16, 256, 13, 13}, 256, 3, 1) == By{false, true});
  CHECK(taken({16, 64, 56, 56}, 64, 3, 1) == By{false, false});
}
