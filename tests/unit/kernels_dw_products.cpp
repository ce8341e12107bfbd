// The gradient of weights in bf16 by products of our own, in registers or in tiles: every remainder
// of chunks, tiles and blocks of channels, with whole numbers, whose sums are exact in any order.
#include "catch.hpp"
#include "cpu/dw_products.hpp"
#include "support/operands.hpp"
#include "support/tiles.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Without tiles (AMX), which are left alone, if it is not too late.
bool available() {
  limit_instruction_set(InstructionSet::avx512_core_bf16);
  const bool so = has_onednn() && lamina::detail::DwProducts::available() && !with_tiles();
  if (!so) WARN("the processor does not multiply bf16, or does so in tiles: nothing to test");
  return so;
}

struct Gradients {
  Values dw, db;
  bool operator==(const Gradients&) const = default;
};

Gradients gradients(const Backend& backend, WeightedKernel& kernel, bool bias, const Values& x,
                    const Values& dy) {
  const bool narrow = kernel.w.dtype == DType::bf16;
  Form w = kernel.w, b = kernel.b;
  w.dtype = wide(w.dtype), b.dtype = w.dtype;
  Form more = b;  // than db, to see what is written beyond it
  more.shape.c += 16;
  const Tensor dw = dirty(w), around_db = bias ? dirty(more) : Tensor();
  View db = around_db;
  if (bias) db.shape = b.shape;
  Stream stream;
  kernel.weight_grad(stream, place(backend, kernel.inputs[0], x), place(backend, kernel.output, dy),
                     dw, db);
  double beyond = 0;  // in the padding of blocks
  if (narrow) {
    for (const float v : dw.elements<float>()) beyond += std::abs(v);
    for (const double v : read(backend, dw)) beyond -= std::abs(v);
  }
  CHECK(std::abs(beyond) < 1e-3);
  if (narrow && bias) {
    for (const float v : around_db.elements<float>().last(16)) CHECK(std::isnan(v));
  }
  return {read(backend, dw), bias ? read(backend, db) : Values()};
}

constexpr const char* ours = lamina::detail::DwProducts::name;
constexpr const char* ours_by_tiles = lamina::detail::DwProducts::name_by_tiles;

bool is(const char* how, const WeightedKernel& kernel) {
  return kernel.algorithm.find(how) != std::string::npos;
}

/// make(back end, dtype) gives a kernel; false where it does not take them.
template <class Make>
bool compare(bool bias, const char* how, const Make& make) {
  const auto reference = reference_backend(), backend = onednn_backend({.only = how});
  if (!is(how, *make(*backend, DType::bf16))) return false;
  const auto exact = make(*reference, DType::f64);
  const Values x = digits(exact->inputs[0].shape.size(), 1);
  const Values dy = digits(exact->output.shape.size(), 2);
  const auto want = gradients(*reference, *exact, bias, x, dy);
  const int before = threads();
  for (const int n : {1, 2, 5}) {
    INFO(n << " threads");
    set_threads(n);
    const auto got = gradients(*backend, *make(*backend, DType::bf16), bias, x, dy);
    CHECK((got == want));
  }
  set_threads(before);
  return true;
}

/// False where forward wants another layout.
bool compare(const ConvGeometry& g, const Shape& shape, const char* how) {
  INFO(shape.text() << ", " << g.channels << " channels, kernel " << g.kernel.h << 'x' << g.kernel.w
                    << ", stride " << g.stride.h << ',' << g.stride.w << ", dilation "
                    << g.dilation.h);
  return compare(g.bias, how, [&](const Backend& on, DType dtype) {
    return on.conv(g, {shape, dtype, {}});
  });
}

bool compare(std::int64_t features, bool bias, const Shape& shape, const char* how) {
  INFO(shape.text() << ", " << features << " features");
  return compare(bias, how, [&](const Backend& on, DType dtype) {
    return on.linear(features, bias, {shape, dtype, {}});
  });
}

void compare_sizes(const char* how) {
  // One position to several chunks and images in one chunk, in odd and even numbers.
  for (const auto& [n, h, w] : {std::array{1, 1, 1},
                                {3, 1, 1},
                                {1, 16, 16},
                                {1, 1, 257},
                                {5, 7, 7},
                                {3, 13, 40},
                                {2, 31, 17},
                                {1, 1, 7000},
                                {9, 31, 33}})  // by tiles in three shares
    CHECK(compare({.channels = 32, .bias = true}, {n, 32, h, w}, how));
  // Tiles of one to four blocks, and several tasks of both.
  for (const std::int64_t channels : {16, 48, 80, 96, 112, 320})
    CHECK(compare({.channels = channels, .bias = channels % 32 == 0}, {2, 48, 9, 9}, how));
  for (const std::int64_t channels : {16, 176, 1040, 2064})
    CHECK(compare({.channels = 64, .bias = false}, {2, channels, 5, 7}, how));
}

void compare_windows(const char* how) {
  const Shape image{3, 32, 11, 14};
  int compared = 0;
  for (const Pair kernel : {Pair(2), Pair(3), Pair{1, 3}, Pair{3, 1}, Pair(5), Pair(7)})
    for (const Pair stride : {Pair(1), Pair(2), Pair{2, 1}, Pair{1, 3}})
      for (const Pad pad : {Pad(0), Pad(1), Pad(3), Pad{0, 1, 2, 0}, Pad{2, 0, 0, 1}}) {
        ConvGeometry g{.channels = 48, .kernel = kernel, .stride = stride, .pad = pad};
        compared += compare(g, image, how);
        g.dilation = 2;
        if (kernel == Pair(3)) compared += compare(g, image, how);
      }
  CHECK(compared > 60);
  for (const std::int64_t stride : {1, 2, 3})
    CHECK(compare({.channels = 64, .stride = stride, .bias = false}, image, how));
}

void compare_channels(const char* how) {
  int compared = 0;
  for (const std::int64_t in : {16, 20, 33})
    for (const std::int64_t out : {6, 17, 40})
      for (const std::int64_t window : {1, 3})
        compared +=
            compare({.channels = out, .kernel = window, .pad = window / 2}, {2, in, 10, 12}, how);
  CHECK(compared == 18);
}

/// At least so many of them, since for a few samples oneDNN takes no tiles.
void compare_linear(const char* how, int least) {
  int compared = 0;
  for (const std::int64_t features : {1, 10, 17, 40, 64, 65, 120, 260})
    for (const std::int64_t inputs : {1, 15, 33, 84, 400})
      for (const std::int64_t samples : {1, 7, 16, 300})
        compared += compare(features, features % 2 == 0, {samples, inputs, 1, 1}, how);
  CHECK(compared >= least);
  CHECK(compare(1000, true, {3, 24, 7, 9}, how));
  CHECK(compare(4096, false, {2, 2304, 1, 1}, how));  // past the caches
}

/// The same with any number of threads.
void compare_bits(const char* how, const Shape& shape, const ConvGeometry& g,
                  double tolerance = 1e-6) {
  const Values x = rounded(random_values(shape.size(), 1), DType::bf16);
  const Values dy = rounded(random_values(g.output(shape).size(), 2), DType::bf16);
  const auto reference = reference_backend(), backend = onednn_backend();
  const auto want =
      gradients(*reference, *reference->conv(g, {shape, DType::f64, {}}), g.bias, x, dy);
  std::optional<Gradients> first;
  const int before = threads();
  for (const int n : {1, 2, 3, 7}) {
    set_threads(n);
    const auto kernel = backend->conv(g, {shape, DType::bf16, {}});
    REQUIRE(is(how, *kernel));
    const auto got = gradients(*backend, *kernel, g.bias, x, dy);
    if (!first) first = got;
    CHECK((got == *first));
  }
  set_threads(before);
  CHECK(difference(first->dw, want.dw) < tolerance);
  if (g.bias) CHECK(difference(first->db, want.db) < tolerance);
}

}  // namespace

TEST_CASE("products of dy and x are the gradients of the weights, in whole numbers") {
  if (available()) compare_sizes(ours);
}
TEST_CASE("products of dy and x know windows, strides, paddings and dilations") {
  if (available()) compare_windows(ours);
}
TEST_CASE("products of dy and x have channels that do not fill a block") {
  if (available()) compare_channels(ours);
}
TEST_CASE("products by tiles are the gradients of the weights, in whole numbers") {
  if (tiles_available()) compare_sizes(ours_by_tiles);
}
TEST_CASE("products by tiles know windows, strides, paddings and dilations") {
  if (tiles_available()) compare_windows(ours_by_tiles);
}
TEST_CASE("products by tiles have channels that do not fill a block") {
  if (tiles_available()) compare_channels(ours_by_tiles);
}

TEST_CASE("products of dy and x are the gradients of the weights of a linear layer") {
  if (available()) compare_linear(ours, 8 * 5 * 4);
}
TEST_CASE("products by tiles are the gradients of the weights of a linear layer") {
  if (tiles_available()) compare_linear(ours_by_tiles, 100);
}
TEST_CASE("products of dy and x have the same bits with any number of threads") {
  if (!available()) return;
  compare_bits(ours, {4, 160, 14, 14}, {.channels = 320, .kernel = 3, .pad = 1, .bias = true});
}
TEST_CASE("products by tiles take rows of windows on images of few channels") {
  if (!tiles_available()) return;
  int compared = 0;
  for (const std::int64_t channels : {1, 2, 3, 5, 12})
    for (const Pair kernel : {Pair(3), Pair(7), Pair{11, 5}, Pair{1, 4}})
      for (const Pair stride : {Pair(1), Pair(2), Pair{1, 3}})
        for (const Pad pad : {Pad(0), Pad(kernel.h / 2), Pad{1, 0, 2, 1}}) {
          const ConvGeometry g{
              .channels = 40, .kernel = kernel, .stride = stride, .pad = pad, .bias = true};
          compared += compare(g, {2, channels, 13, 12}, ours_by_tiles);
        }
  CHECK(compared > 100);
  const ConvGeometry first{.channels = 64, .kernel = 7, .stride = 2, .pad = 3, .bias = false};
  CHECK(compare(first, {3, 3, 64, 70}, ours_by_tiles));  // in two shares
  compare_bits(ours_by_tiles, {3, 3, 64, 70}, first, 4e-6);
}
TEST_CASE("products by tiles have the same bits with any number of threads") {
  if (!tiles_available()) return;
  compare_bits(ours_by_tiles, {4, 160, 14, 14},
               {.channels = 320, .kernel = 3, .pad = 1, .bias = true});
  // Positions in two shares, and in five: thousands of terms, one after the other in f32.
  const ConvGeometry windows{.channels = 256, .kernel = 3, .pad = 1, .bias = true};
  compare_bits(ours_by_tiles, {2, 64, 57, 55}, windows, 4e-6);
  compare_bits(ours_by_tiles, {5, 64, 57, 55}, {.channels = 40, .bias = false}, 4e-6);
}

TEST_CASE("products of dy and x are not taken where copies take longer, with any threads") {
  if (!available()) return;
  struct Case {
    Shape x;
    std::int64_t channels, window;
    bool pays;
  };
  const int before = threads();
  for (const auto& [x, channels, window, pays] : {Case{{16, 16, 32, 32}, 16, 3, false},
                                                  {{16, 48, 28, 28}, 48, 1, false},
                                                  {{16, 16, 28, 28}, 512, 1, false},
                                                  {{16, 64, 28, 28}, 64, 3, true},
                                                  {{16, 64, 28, 28}, 256, 1, true}})
    for (const int n : {1, 2, 5}) {
      INFO(x.text() << ", " << channels << " channels, " << n << " threads");
      set_threads(n);
      const ConvGeometry g{.channels = channels, .kernel = window, .pad = window / 2};
      CHECK(is(ours, *onednn_backend()->conv(g, {x, DType::bf16, {}})) == pays);
    }
  set_threads(before);
}

TEST_CASE("a stride of 1x1 windows thins images out before tiles multiply them") {
  if (!tiles_available()) return;
  const auto thinned = [](const ConvGeometry& g, const Shape& shape) {
    const Form form{shape, DType::bf16, {}};
    return is("thinned", *onednn_backend()->conv(g, form));
  };
  const auto reference = reference_backend(), backend = onednn_backend();
  for (const Shape& shape : {Shape{2, 64, 8, 8}, Shape{3, 32, 7, 9}, Shape{1, 48, 1, 5}})
    for (const Pair stride : {Pair(2), Pair(3), Pair{2, 1}, Pair{1, 2}})
      for (const bool bias : {false, true}) {
        INFO(shape.text() << ", stride " << stride.text() << (bias ? ", bias" : ""));
        const ConvGeometry g{.channels = 96, .stride = stride, .bias = bias};
        REQUIRE(thinned(g, shape));
        const auto exact = reference->conv(g, {shape, DType::f64, {}});
        const auto kernel = backend->conv(g, {shape, DType::bf16, {}});
        const Values x = digits(shape.size(), 1), w = digits(96 * shape.c, 2), b = digits(96, 3);
        const Values dy = digits(g.output(shape).size(), 4);
        const auto outputs = [&](const Backend& on, WeightedKernel& by) {
          const Tensor image = place(on, by.inputs[0], x), weights = place(on, by.w, w);
          const Tensor biases = bias ? place(on, by.b, b) : Tensor(), y = dirty(by.output);
          const Tensor dx = dirty(by.inputs[0]);
          Stream stream;
          by.forward(stream, image, weights, biases, y, {});
          by.input_grad(stream, weights, place(on, by.output, dy), dx);
          return std::pair(read(on, y), read(on, dx));
        };
        const auto want = outputs(*reference, *exact), got = outputs(*backend, *kernel);
        CHECK(difference(got.first, want.first) < 4e-3);  // where bf16 rounds
        CHECK(difference(got.second, want.second) < 4e-3);
        CHECK((gradients(*backend, *kernel, bias, x, dy) ==
               gradients(*reference, *exact, bias, x, dy)));
      }
  CHECK_FALSE(thinned({.channels = 96, .stride = 2, .pad = 1}, {2, 64, 8, 8}));
  CHECK_FALSE(thinned({.channels = 96, .kernel = 2, .stride = 2}, {2, 64, 8, 8}));
  CHECK_FALSE(thinned({.channels = 96, .stride = 2, .groups = 2}, {2, 64, 8, 8}));
}
