// Convolutions and linear layers of the CUDA back end on the stand-in for cuDNN: that each graph
// gets its operands, and what is left to do behind it is done.
#include "catch.hpp"
#include "fake/cudnn/stand_in.hpp"
#include "fake/runtime.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What goes in, as numbers that elements of type `t` have.
struct Operands {
  Values x, w, b, added, dy;
};

Operands operands_of(const WeightedKernel& k, DType t) {
  return {rounded(random_values(k.inputs[0].shape.size(), 1), t),
          rounded(random_values(k.w.shape.size(), 2), t),
          rounded(random_values(k.b.shape.size(), 3), t),
          rounded(random_values(k.output.shape.size(), 4), t),
          rounded(random_values(k.output.shape.size(), 5), t)};
}

Tensor on(const Backend& backend, const Form& form, const Values& values) {
  Tensor plain(form.shape, form.dtype), there(form, backend.memory());
  visit(form.dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) plain.as<T>()[i] = T(values[i]);
  });
  backend.copy(plain, there);
  return there;
}

Values numbers_of(const Backend& backend, const View& view) {
  const Tensor plain(view.shape, view.dtype);
  backend.copy(view, plain);
  return numbers(plain);
}

/// y, dx, dw and db, which are of type `gradients`; db is empty without a bias.
std::vector<Values> run(const Backend& backend, WeightedKernel& k, const Operands& in,
                        DType gradients) {
  const auto gradient = [&](Form form) {
    form.dtype = gradients;
    return dirty(form, backend.memory());
  };
  const bool bias = k.b.shape.c > 1, adds = k.inputs.size() > 1;
  const Tensor x = on(backend, k.inputs[0], in.x), w = on(backend, k.w, in.w);
  const Tensor b = bias ? on(backend, k.b, in.b) : Tensor();
  const Tensor added = adds ? on(backend, k.output, in.added) : Tensor();
  const Tensor dy = on(backend, k.output, in.dy), y = dirty(k.output, backend.memory());
  const Tensor dx = dirty(k.inputs[0], backend.memory()), dw = gradient(k.w);
  const Tensor db = bias ? gradient(k.b) : Tensor();
  Stream stream;
  k.forward(stream, x, w, b, y, added);
  k.input_grad(stream, w, dy, dx);
  k.weight_grad(stream, x, dy, dw, db);
  stream.wait();
  std::vector<Values> all = {numbers_of(backend, y), numbers_of(backend, dx),
                             numbers_of(backend, dw)};
  if (bias) all.push_back(numbers_of(backend, db));
  return all;
}

std::unique_ptr<WeightedKernel> make(const Backend& backend, const std::optional<ConvGeometry>& g,
                                     bool bias, const Form& x, const Epilogue& e) {
  return g ? backend.conv(*g, x, e) : backend.linear(5, bias, x, e);
}

/// Against the reference in f64.
void compare(const std::optional<ConvGeometry>& g, bool bias, const Shape& x, const Epilogue& e,
             DType t, DType gradients) {
  CAPTURE(name(t), name(gradients), x, g.has_value(), bias, e.add, e.slope());
  const auto backend = cuda_backend(0);
  const Reference reference;
  const auto kernel = make(*backend, g, bias, {x, t, {}}, e);
  const auto right = make(reference, g, bias, {x, DType::f64, {}}, e);
  const Operands in = operands_of(*right, t);
  const auto got = run(*backend, *kernel, in, gradients);
  const auto expected = run(reference, *right, in, DType::f64);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    // Rounded twice, or thrice; the order of sums is another one.
    CHECK(difference(got[i], expected[i]) < std::max(4 * roundoff(t), 1e-14));
  }
}

const std::vector<ConvGeometry> geometries = {
    {.channels = 6, .kernel = 3, .pad = 1},
    {.channels = 4, .kernel = {3, 2}, .stride = {2, 1}, .pad = Pad(1, 0, 2, 1)},
    {.channels = 6, .kernel = 3, .pad = 2, .dilation = 2, .groups = 3, .bias = false},
    {.channels = 8, .kernel = 1, .bias = false},
};

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

TEST_CASE("linear layers by cuDNN equal the reference") {
  const DType t = GENERATE(DType::f64, DType::f32, DType::bf16, DType::f16);
  for (const bool bias : {true, false})
    for (const Epilogue& e : {Epilogue{}, Epilogue{.activation = Activation{}}}) {
      compare({}, bias, {3, 7, 1, 1}, e, t, wide(t));
      compare({}, bias, {3, 4, 2, 3}, e, t, wide(t));
    }
}

TEST_CASE("once warm, a convolution by cuDNN allocates nothing and waits for nobody") {
  const auto backend = cuda_backend(0);
  const auto kernel = backend->conv(geometries[0], {{2, 6, 7, 5}, DType::bf16, {}});
  const Form x = kernel->inputs[0];
  const Tensor a(x, backend->memory()), y(kernel->output, backend->memory());
  const Tensor w(kernel->w, backend->memory()), b(kernel->b, backend->memory());
  const Form wide_w{w.shape(), DType::f32, kernel->w.layout};
  const Tensor dw(wide_w, backend->memory()), db({1, 6, 1, 1}, DType::f32, backend->memory());
  Stream stream;
  const auto step = [&] {
    kernel->forward(stream, a, w, b, y);
    kernel->input_grad(stream, w, y, a);
    kernel->weight_grad(stream, a, y, dw, db);
  };
  step(), step();  // in the first one, scratch memory grows
  const FakeCounts before = fake_counts();
  const int made = fake_cudnn().made;
  for (int i = 0; i < 3; ++i) step();
  CHECK(fake_counts().allocations == before.allocations);
  CHECK(fake_counts().waits == before.waits);
  CHECK(fake_cudnn().made == made);
  CHECK(kernel->scratch >= w.bytes());
}

TEST_CASE("times of cuDNN's ways are kept, and the fastest is taken") {
  const auto times = std::make_shared<Verdicts>();
  const auto backend = cuda_backend(0, {.verdicts = times});
  const auto first = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  const FakeCudnn before = fake_cudnn();
  const auto second = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  CHECK(fake_cudnn().runs == before.runs);
  CHECK(fake_cudnn().plans == before.plans + 3);  // those that are taken
  CHECK(second->algorithm == first->algorithm);
  CHECK(first->algorithm.starts_with("cudnn:"));
  CHECK(fake_cudnn().runs[2] == 0);  // it would be compiled at run time
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

TEST_CASE("ways of cuDNN's that cannot be planned are passed over") {
  const auto backend = cuda_backend(0);
  const auto make = [&] { return backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}}); };
  refuse_engines({1});
  CHECK(make()->algorithm == "cudnn:0 cudnn:0 cudnn:0");
  refuse_engines({0, 1});
  CHECK_THROWS_WITH(make(), Catch::StartsWith("cuDNN has nothing for conv forward 2x6x7x5") &&
                                Catch::Contains("; cuDNN: make a plan: refused"));
  refuse_engines({});
}

TEST_CASE("no descriptor or handle of cuDNN's is left behind") {
  {
    const auto backend = cuda_backend(0);
    const auto kernel = backend->linear(5, true, {{3, 7, 1, 1}, DType::f32, {}});
  }
  CHECK(fake_cudnn().handles == 0);
  CHECK(fake_cudnn().descriptors == 0);
}
