// Convolutions and linear layers of the CUDA back end: that each graph gets its operands, and what
// is left to do behind it is done.
#include "catch.hpp"
#include "gpu/weighted.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

std::unique_ptr<WeightedKernel> make(const Backend& backend, const std::optional<ConvGeometry>& g,
                                     bool bias, const Form& x, const Epilogue& e) {
  return g ? backend.conv(*g, x, e) : backend.linear(5, bias, x, e);
}

/// Against the reference in f64; what `algorithm` says.
std::string compare(const std::optional<ConvGeometry>& g, bool bias, const Shape& x,
                    const Epilogue& e, DType t, DType gradients, const Choice& choice = {}) {
  CAPTURE(name(t), name(gradients), x, g.has_value(), bias, e.add, e.slope());
  const auto backend = cuda_backend(0, choice);
  const Reference reference;
  const auto kernel = make(*backend, g, bias, {x, t, {}}, e);
  const auto right = make(reference, g, bias, {x, DType::f64, {}}, e);
  const Operands in = operands_of(*right, t);
  const auto got = run(*backend, *kernel, in, gradients);
  const auto expected = run(reference, *right, in, DType::f64);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    const Shape y = kernel->output.shape;
    const auto most_terms = double(std::max(y.n * y.h * y.w, kernel->w.shape.sample()));
    CHECK(difference(got[i], expected[i]) <
          close_to(t, most_terms, is_loose(kernel->algorithm, i)));
  }
  return kernel->algorithm;
}

/// Times by which ways that are called so are the fastest, or the slowest.
class Preferring final : public Verdicts {
 public:
  Preferring(const char* name, bool fastest) : name_(name), fastest_(fastest) {}
  double keep(const std::string& what, double) override {
    return (what.find(name_) != std::string::npos) == fastest_ ? 1 : 2;
  }

 private:
  const char* name_;
  bool fastest_;
};

/// How often.
int count_of(const std::string& what, const std::string& in) {
  int count = 0;
  for (std::size_t at = in.find(what); at != std::string::npos; at = in.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("convolutions by cuDNN equal the reference") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  const Epilogue e =
      GENERATE(Epilogue{}, Epilogue{.activation = Activation{}}, Epilogue{.add = true},
               Epilogue{.add = true, .activation = Activation{}},
               Epilogue{.activation = Activation{Activation::Kind::leaky_relu, 0.25}});
  for (const ConvGeometry& g : geometries) compare(g, g.bias, {2, 6, 7, 5}, e, t, wide(t));
  compare(geometries[0], true, {2, 6, 7, 5}, e, t, t);
}

TEST_CASE(
    "what is undefined stays so in convolutions by cuDNN, with ReLU in the graph and behind") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  // The candidate: fused, plain; of a product by cuDNN and by cuBLAS.
  const auto [kernel_size, way] = GENERATE(table<int, const char*>(
      {{3, " 0."}, {3, " 1."}, {1, " 0."}, {1, " 1."}, {1, " 2."}, {1, " 3."}}));
  CAPTURE(name(t), way);
  const Choice choice{.verdicts = std::make_shared<Preferring>(way, true)};
  const Reference reference;
  const ConvGeometry g{.channels = 8, .kernel = kernel_size, .pad = kernel_size / 2};
  const Shape x{2, 8, 7, 5};
  const Epilogue relu{.activation = Activation{}};
  const auto backend = cuda_backend(0, choice);
  const auto kernel = backend->conv(g, {x, t, {}}, relu);
  const auto right = reference.conv(g, {x, DType::f64, {}}, relu);
  Operands in = operands_of(*right, t);
  in.x[17] = in.b[3] = NAN;
  const Values got = run(*backend, *kernel, in, wide(t))[0];
  const Values expected = run(reference, *right, in, DType::f64)[0];
  int undefined = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    undefined += std::isnan(expected[i]);
    REQUIRE(std::isnan(got[i]) == std::isnan(expected[i]));
  }
  CHECK(undefined > 2 * 7 * 5);
}

TEST_CASE("convolutions of few channels by cuDNN equal the reference, in blocks and without") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  const bool blocks = GENERATE(true, false);
  const Choice choice{.verdicts = std::make_shared<Preferring>("blocks+", blocks)};
  for (const First& f : firsts)
    for (const Epilogue& e : {Epilogue{}, Epilogue{.activation = Activation{}},
                              Epilogue{.add = true, .activation = Activation{}}})
      for (const DType gradients : {t, wide(t)}) {
        const auto by = compare(f.geometry, f.geometry.bias, f.x, e, t, gradients, choice);
        CHECK(count_of("blocks+", by) == (blocks ? 2 : 0));  // not in the gradient of x
      }
}

TEST_CASE("blocks are for few channels alone") {
  const Choice choice{.verdicts = std::make_shared<Preferring>("blocks+", true)};
  const auto backend = cuda_backend(0, choice);
  const ConvGeometry g{.channels = 8, .kernel = 3, .stride = 2, .pad = 1};
  ConvGeometry dilated = g, grouped = g, small = g;
  dilated.dilation = {1, 2}, grouped.groups = 2, small.kernel = 1;
  const auto blocks = [&](const ConvGeometry& of, std::int64_t channels, DType t) {
    return count_of("blocks+", backend->conv(of, {{2, channels, 6, 7}, t, {}})->algorithm) > 0;
  };
  CHECK(blocks(g, 4, DType::bf16));
  CHECK(!blocks(g, 5, DType::bf16));
  CHECK(!blocks(g, 4, DType::f32));
  CHECK(!blocks(dilated, 3, DType::bf16));
  CHECK(!blocks(grouped, 4, DType::bf16));
  CHECK(!blocks(small, 3, DType::bf16));
}

TEST_CASE("linear layers equal the reference, by cuDNN and by cuBLAS") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  const char* const library = GENERATE("cudnn:", "cublas:");
  const Choice choice{.verdicts = std::make_shared<Preferring>(library, true)};
  for (const bool bias : {true, false})
    for (const Epilogue& e : {Epilogue{}, Epilogue{.activation = Activation{}}}) {
      for (const Shape& x : {Shape{3, 7, 1, 1}, Shape{3, 4, 2, 3}}) {
        const auto by = compare({}, bias, x, e, t, wide(t), choice);
#ifdef LAMINA_EMULATED  // a GPU's may not have such sizes
        CHECK(count_of(library, by) > 0);
#endif
      }
    }
}

TEST_CASE("convolutions that are products of matrices, by cuBLAS, equal the reference") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  const bool bias = GENERATE(true, false);
  const Epilogue e =
      GENERATE(Epilogue{}, Epilogue{.activation = Activation{}}, Epilogue{.add = true},
               Epilogue{.add = true, .activation = Activation{}},
               Epilogue{.activation = Activation{Activation::Kind::leaky_relu, 0.25}});
  const Choice choice{.verdicts = std::make_shared<Preferring>("cublas:", true)};
  const ConvGeometry g{.channels = 16, .kernel = 1, .bias = bias};
  for (const DType gradients : {t, wide(t)}) {
    const auto by = compare(g, bias, {2, 8, 7, 5}, e, t, gradients, choice);
    CHECK(count_of("cublas:", by) > 0);
    CHECK(count_of("cudnn:", by) == 0);
  }
}

TEST_CASE("other convolutions are no products of matrices") {
  const Choice choice{.verdicts = std::make_shared<Preferring>("cublas:", true)};
  const auto backend = cuda_backend(0, choice);
  const ConvGeometry g{.channels = 8, .kernel = 1};
  ConvGeometry strided = g, padded = g, grouped = g, larger = g;
  strided.stride = {2, 1}, padded.pad = Pad(0, 1, 0, 0), grouped.groups = 2, larger.kernel = {1, 2};
  const auto products = [&](const ConvGeometry& of) {
    return count_of("cublas:", backend->conv(of, {{2, 8, 6, 7}, DType::f32, {}})->algorithm);
  };
  CHECK(products(g) > 0);
  for (const ConvGeometry& other : {strided, padded, grouped, larger}) CHECK(products(other) == 0);
}

TEST_CASE("a convolution by cuDNN runs with other operands than before") {
  const auto backend = cuda_backend(0);
  const auto kernel = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  Operands in = operands_of(*kernel, DType::f32);
  const auto first = run(*backend, *kernel, in, DType::f32);
  for (double& v : in.x) v *= 2;
  const auto second = run(*backend, *kernel, in, DType::f32);
  Values twice = first[0];
  for (double& v : twice) v *= 2;
  CHECK(difference(second[0], twice) < 1e-6);
  Stream stream;  // both sets of operands at once
  const auto there = [&](const Form& f, const Values& v) { return on(*backend, f, v); };
  const Tensor x = there(kernel->inputs[0], in.x), w = there(kernel->w, in.w);
  const Tensor a(kernel->output, backend->memory()), b(kernel->output, backend->memory());
  kernel->forward(stream, x, w, {}, a);
  kernel->forward(stream, x, w, {}, b);
  stream.wait();
  CHECK(numbers_of(*backend, a) == second[0]);
  CHECK(numbers_of(*backend, b) == second[0]);
}

TEST_CASE("who waits for what is in a stream waits for a convolution by cuDNN") {
  const auto backend = cuda_backend(0);
  const auto kernel = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  const Operands in = operands_of(*kernel, DType::f32);
  const Tensor x = on(*backend, kernel->inputs[0], in.x), w = on(*backend, kernel->w, in.w);
  const Tensor y = dirty(kernel->output, backend->memory());
  const Tensor again = dirty(kernel->output, backend->memory());
  std::vector<float> got(std::size_t(y.shape().size())), right(got.size());
  Stream stream;
  kernel->forward(stream, x, w, {}, y);
  stream.event().wait();
  backend->memory().copy(y.view().data, right.data(), y.bytes());
  kernel->forward(stream, x, w, {}, again);
  stream.event().wait();
  backend->memory().copy(again.view().data, got.data(), y.bytes());
  CHECK(got == right);
}
