// The gradient of weights in bf16 by products, the back end's own or one of matrices: every
// remainder of chunks, tiles and blocks of channels, with whole numbers, whose sums are exact in
// any order.
#include "catch.hpp"
#include "cpu/dw_products.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/kernels/threads.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Where there are tiles (AMX) these are oneDNN's, so they are left alone, if it is not too late.
bool available() {
  limit_instruction_set(InstructionSet::avx512_core_bf16);
  const bool so = has_onednn() && lamina::detail::DwProducts::available() &&
                  onednn_backend()->description().find("amx") == std::string::npos;
  if (!so) WARN("the processor does not multiply bf16, or does so in tiles: nothing to test");
  return so;
}

/// Whole numbers of one digit.
Values digits(std::int64_t n, std::uint64_t seed) {
  Values values = random_values(n, seed);
  for (double& v : values) v = std::round(3 * v);
  return values;
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

constexpr const char* ours = "lamina:products";
constexpr const char* one_product = "matmul";

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
bool compare(const ConvGeometry& g, const Shape& shape, const char* how = ours) {
  INFO(shape.text() << ", " << g.channels << " channels, kernel " << g.kernel.h << 'x' << g.kernel.w
                    << ", stride " << g.stride.h << ',' << g.stride.w << ", dilation "
                    << g.dilation.h);
  return compare(g.bias, how, [&](const Backend& on, DType dtype) {
    return on.conv(g, {shape, dtype, {}});
  });
}

bool compare(std::int64_t features, bool bias, const Shape& shape) {
  INFO(shape.text() << ", " << features << " features");
  return compare(bias, ours, [&](const Backend& on, DType dtype) {
    return on.linear(features, bias, {shape, dtype, {}});
  });
}

}  // namespace

TEST_CASE("products of dy and x are the gradients of the weights, in whole numbers") {
  if (!available()) return;
  // One position to several chunks and images in one chunk, in odd and even numbers.
  for (const auto& [n, h, w] : {std::array{1, 1, 1},
                                {3, 1, 1},
                                {1, 16, 16},
                                {1, 1, 257},
                                {5, 7, 7},
                                {3, 13, 40},
                                {2, 31, 17}})
    CHECK(compare({.channels = 32, .bias = true}, {n, 32, h, w}));
  // Tiles of one to four blocks, and several tasks of both.
  for (const std::int64_t channels : {16, 48, 80, 96, 112, 320})
    CHECK(compare({.channels = channels, .bias = channels % 32 == 0}, {2, 48, 9, 9}));
  for (const std::int64_t channels : {16, 176, 1040, 2064})
    CHECK(compare({.channels = 64, .bias = false}, {2, channels, 5, 7}));
}

TEST_CASE("products of dy and x know windows, strides, paddings and dilations") {
  if (!available()) return;
  const Shape image{3, 32, 11, 14};
  int compared = 0;
  for (const Pair kernel : {Pair(2), Pair(3), Pair{1, 3}, Pair{3, 1}, Pair(5), Pair(7)})
    for (const Pair stride : {Pair(1), Pair(2), Pair{2, 1}, Pair{1, 3}})
      for (const Pad pad : {Pad(0), Pad(1), Pad(3), Pad{0, 1, 2, 0}, Pad{2, 0, 0, 1}}) {
        ConvGeometry g{.channels = 48, .kernel = kernel, .stride = stride, .pad = pad};
        compared += compare(g, image);
        g.dilation = 2;
        if (kernel == Pair(3)) compared += compare(g, image);
      }
  CHECK(compared > 60);
  for (const std::int64_t stride : {1, 2, 3})
    CHECK(compare({.channels = 64, .stride = stride, .bias = false}, image));
}

TEST_CASE("products of dy and x have channels that do not fill a block") {
  if (!available()) return;
  int compared = 0;
  for (const std::int64_t in : {16, 20, 33})
    for (const std::int64_t out : {6, 17, 40})
      for (const std::int64_t window : {1, 3})
        compared +=
            compare({.channels = out, .kernel = window, .pad = window / 2}, {2, in, 10, 12});
  CHECK(compared == 18);
}

TEST_CASE("products of dy and x are the gradients of the weights of a linear layer") {
  if (!available()) return;
  for (const std::int64_t features : {1, 10, 17, 40, 64, 65, 120, 260})
    for (const std::int64_t inputs : {1, 15, 33, 84, 400})
      for (const std::int64_t samples : {1, 7, 16, 300})
        CHECK(compare(features, features % 2 == 0, {samples, inputs, 1, 1}));
  CHECK(compare(1000, true, {3, 24, 7, 9}));
  CHECK(compare(4096, false, {2, 2304, 1, 1}));  // past the caches
}

TEST_CASE("products of dy and x have the same bits with any number of threads") {
  if (!available()) return;
  const ConvGeometry g{.channels = 320, .kernel = 3, .pad = 1, .bias = true};
  const Shape shape{4, 160, 14, 14};
  const Values x = rounded(random_values(shape.size(), 1), DType::bf16);
  const Values dy = rounded(random_values(g.output(shape).size(), 2), DType::bf16);
  const auto reference = reference_backend(), backend = onednn_backend();
  const auto want =
      gradients(*reference, *reference->conv(g, {shape, DType::f64, {}}), true, x, dy);
  std::optional<Gradients> first;
  const int before = threads();
  for (const int n : {1, 2, 3, 7}) {
    set_threads(n);
    const auto kernel = backend->conv(g, {shape, DType::bf16, {}});
    REQUIRE(is(ours, *kernel));
    const auto got = gradients(*backend, *kernel, true, x, dy);
    if (!first) first = got;
    CHECK((got == *first));
  }
  set_threads(before);
  CHECK(difference(first->dw, want.dw) < 1e-6);
  CHECK(difference(first->db, want.db) < 1e-6);
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

TEST_CASE("one product of matrices is the gradient of 1x1 weights, where there are tiles") {
  const bool tiles =
      has_onednn() && onednn_backend()->description().find("amx") != std::string::npos;
  if (!tiles) {
    WARN("the processor has no tiles (AMX), or they are not used: nothing to test");
    return;
  }
  int compared = 0;
  for (const Shape& x : {Shape{1, 32, 1, 1}, Shape{3, 64, 7, 7}, Shape{2, 48, 9, 5},
                         Shape{2, 100, 5, 7}, Shape{4, 256, 14, 14}, Shape{1, 2048, 3, 3}})
    for (const std::int64_t channels : {16, 33, 64, 512})
      compared += compare({.channels = channels, .bias = false}, x, one_product);
  CHECK(compared > 12);
  const Shape image{2, 32, 8, 8};  // of which dw is not one product
  CHECK_FALSE(compare({.channels = 32, .stride = 2, .bias = false}, image, one_product));
  CHECK_FALSE(compare({.channels = 32, .pad = 1, .bias = false}, image, one_product));
  CHECK_FALSE(compare({.channels = 32, .groups = 2, .bias = false}, image, one_product));
  CHECK_FALSE(compare({.channels = 32, .kernel = 3, .bias = false}, image, one_product));
  CHECK_FALSE(compare({.channels = 32, .bias = true}, image, one_product));
}
