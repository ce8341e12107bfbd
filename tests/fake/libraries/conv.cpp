// Convolutions of the CUDA back end on the stand-ins for cuDNN and cuBLAS: what they cost, which
// way is taken, and what goes wrong.
#include "catch.hpp"
#include "fake/libraries/cublas.hpp"
#include "fake/libraries/cudnn.hpp"
#include "fake/runtime.hpp"
#include "gpu/weighted.hpp"

#include <lamina/kernels/gpu_name.hpp>

#include <algorithm>

using namespace lamina;
using namespace lamina::test;

namespace {

/// cuBLAS does not have it.
const ConvGeometry window{.channels = 8, .kernel = 2, .bias = false};
/// It has this.
const ConvGeometry product{.channels = 8, .kernel = 1};

/// For as long as there is one.
struct WithoutCublas {
  WithoutCublas() { give_ways_of_cublas(false); }
  ~WithoutCublas() { give_ways_of_cublas(true); }
};

/// Times by which cuBLAS is the fastest; what was timed.
class PreferringCublas final : public Verdicts {
 public:
  double keep(const std::string& what, double) override {
    timed.push_back(what);
    return what.find("cublas:") != std::string::npos ? 1 : 2;
  }
  /// How many are ways of this candidate for forward.
  int count(const std::string& candidate) const {
    return int(std::ranges::count_if(timed, [&](const std::string& what) {
      return what.find("conv forward ") != std::string::npos &&
             what.find(candidate) != std::string::npos;
    }));
  }
  std::vector<std::string> timed;
};

}  // namespace

TEST_CASE("once warm, a convolution by cuDNN allocates nothing and waits for nobody") {
  const auto backend = cuda_backend(0);
  const auto& g = geometries[GENERATE(0U, 1U)];  // of the second one x is copied with its padding
  const auto kernel = backend->conv(g, {{2, 6, 7, 5}, DType::bf16, {}});
  const Form x = kernel->inputs[0];
  const Tensor a(x, backend->memory()), y(kernel->output, backend->memory());
  const Tensor w(kernel->w, backend->memory()), b(kernel->b, backend->memory());
  const Form wide_w{w.shape(), DType::f32, kernel->w.layout};
  const Tensor dw(wide_w, backend->memory());
  const Tensor db({1, g.channels, 1, 1}, DType::f32, backend->memory());
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
  CHECK(kernel->scratch >= w.bytes() + (g.pad == 1 ? 0 : a.bytes()));
}

TEST_CASE("times of cuDNN's ways are kept, and the fastest is taken") {
  const auto times = std::make_shared<Verdicts>();
  const auto backend = cuda_backend(0, {.verdicts = times});
  const auto first = backend->conv(window, {{2, 6, 7, 5}, DType::f32, {}});
  const FakeCudnn before = fake_cudnn();
  const auto second = backend->conv(window, {{2, 6, 7, 5}, DType::f32, {}});
  CHECK(fake_cudnn().runs == before.runs);
  CHECK(fake_cudnn().plans == before.plans + 3);  // those that are taken
  CHECK(second->algorithm == first->algorithm);
  CHECK(first->algorithm.starts_with("cudnn:"));
  CHECK(fake_cudnn().runs[2] == 0);  // it would be compiled at run time
}

TEST_CASE("ways of cuDNN's that cannot be planned are passed over") {
  const auto backend = cuda_backend(0);
  const auto make = [&] { return backend->conv(window, {{2, 6, 7, 5}, DType::f32, {}}); };
  refuse_engines({1});
  CHECK(make()->algorithm == "cudnn:0");
  refuse_engines({0, 1});
  CHECK_THROWS_WITH(make(), ContainsSubstring("no library has a way for conv forward 2x6x7x5") &&
                                ContainsSubstring("; cuDNN: make a plan: refused"));
  refuse_engines({});
}

TEST_CASE("where a GPU is full or lost while ways are timed, it says so") {
  const auto backend = cuda_backend(0);
  const auto make = [&] { return backend->conv(window, {{1, 64, 40, 40}, DType::f32, {}}); };
  fake_memory(1024);
  CHECK_THROWS_WITH(make(),
                    ContainsSubstring("not enough memory of cuda:0: an operand to time "
                                      "kernels with takes 0.4 MB, and ") &&
                        ContainsSubstring(" are free: a smaller batch or micro-batch may fit"));
  fake_memory(std::size_t(1) << 34);
  lose_device(true);
  CHECK_THROWS_WITH(make(),
                    ContainsSubstring("CUDA: ") &&
                        ContainsSubstring("unspecified launch failure: the GPU was lost, or a "
                                          "kernel failed on it"));
  lose_device(false);
  CHECK_NOTHROW(make());
}

TEST_CASE("cuDNN's ways are those that a back end's name allows") {
  const auto times = std::make_shared<Verdicts>();
  const auto made = [&](DType t, const Demands& demands) {
    const auto backend = cuda_backend(0, {.demands = demands, .verdicts = times});
    CHECK(GpuName::of(backend->name())->text() == GpuName{.demands = demands}.text());
    return backend->conv(window, {{2, 6, 7, 5}, t, {}})->algorithm;
  };
  const std::string only_0 = "cudnn:0", only_1 = "cudnn:1";
  const auto note = [](auto what) { note_of_engines({1}, what), refuse_engines({0}); };
  const auto nothing = ContainsSubstring("no library has a way for");

  note(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  CHECK_THROWS_WITH(made(DType::f32, {}), nothing);
  CHECK(made(DType::f32, {.tf32 = true}) == only_1);
  CHECK(made(DType::bf16, {}) == only_1);

  note(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  CHECK_THROWS_WITH(made(DType::f32, {.deterministic = true}),
                    nothing && ContainsSubstring(":deterministic"));
  CHECK(made(DType::f32, {}) == only_1);

  note(CUDNN_NUMERICAL_NOTE_WINOGRAD);
  CHECK(made(DType::f32, {}) == only_1 + ":winograd");

  note_of_engines({}, {});
  CHECK_THROWS_WITH(made(DType::f32, {.most_workspace = 4095}),
                    nothing && ContainsSubstring(":workspace=4095"));
  CHECK(made(DType::f32, {.most_workspace = 4096}) == only_1);
  refuse_engines({});
  CHECK(made(DType::f32, {.most_workspace = 4095}) == only_0);
}

TEST_CASE("times of cuDNN's ways hold for the same demands") {
  const auto times = std::make_shared<Verdicts>();
  const auto make = [&](bool tf32) {
    const auto backend = cuda_backend(0, {.demands = {.tf32 = tf32}, .verdicts = times});
    backend->conv(window, {{2, 6, 7, 5}, DType::f32, {}});
  };
  make(false);
  const FakeCudnn before = fake_cudnn();
  make(true);  // ways are numbered: those of the two need not be the same ones
  CHECK(fake_cudnn().runs != before.runs);
}

TEST_CASE("once warm, a convolution by cuBLAS allocates nothing and waits for nobody") {
  const auto backend = cuda_backend(0, {.verdicts = std::make_shared<PreferringCublas>()});
  const auto kernel =
      backend->conv(product, {{2, 6, 7, 5}, DType::bf16, {}}, {.activation = Activation{}});
  CHECK(kernel->algorithm.starts_with("cublas:"));
  CHECK(kernel->algorithm.find("cudnn:") == std::string::npos);
  const Tensor x(kernel->inputs[0], backend->memory()), y(kernel->output, backend->memory());
  const Tensor w(kernel->w, backend->memory()), b(kernel->b, backend->memory());
  const Tensor dw({w.shape(), DType::f32, kernel->w.layout}, backend->memory());
  const Tensor db({1, product.channels, 1, 1}, DType::f32, backend->memory());
  Stream stream;
  const auto step = [&] {
    kernel->forward(stream, x, w, b, y);
    kernel->input_grad(stream, w, y, x);
    kernel->weight_grad(stream, x, y, dw, db);
  };
  step(), step();
  const FakeCounts before = fake_counts();
  const FakeCublas made = fake_cublas();
  for (int i = 0; i < 3; ++i) step();
  CHECK(fake_counts().allocations == before.allocations);
  CHECK(fake_counts().waits == before.waits);
  CHECK(fake_cublas().things == made.things);
  CHECK(fake_cublas().products == made.products + 9);
}

TEST_CASE("where cuBLAS has no way, cuDNN multiplies") {
  const WithoutCublas without;
  const auto times = std::make_shared<PreferringCublas>();
  const auto kernel =
      cuda_backend(0, {.verdicts = times})->conv(product, {{2, 6, 7, 5}, DType::f32, {}});
  CHECK(kernel->algorithm.starts_with("cudnn:"));
  CHECK(!times->timed.empty());
}

TEST_CASE("ways whose ReLU makes what is undefined 0 are passed over") {
  const bool keeps = GENERATE(true, false);
  keep_undefined_in_cublas(keeps);
  const auto times = std::make_shared<PreferringCublas>();
  const auto kernel =
      cuda_backend(0, {.verdicts = times})
          ->conv(product, {{2, 6, 7, 5}, DType::bf16, {}}, {.activation = Activation{}});
  keep_undefined_in_cublas(true);
  CHECK(times->count(" 2.") == (keeps ? 2 : 0));  // ReLU in the product
  CHECK(times->count(" 3.") == 2);                // and behind it
  CHECK(kernel->algorithm.starts_with("cublas:"));
}

TEST_CASE("cuBLAS's ways are those that a back end's name allows") {
  const auto forward = [&](DType t, const Demands& demands) {
    const auto times = std::make_shared<PreferringCublas>();
    cuda_backend(0, {.demands = demands, .verdicts = times})->conv(product, {{2, 6, 7, 5}, t, {}});
    return times->count("cublas:");
  };
  CHECK(forward(DType::f32, {}) == 4);  // two each with the bias in the product, and behind it
  CHECK(forward(DType::f32, {.most_workspace = 4096}) == 4);
  CHECK(forward(DType::f32, {.most_workspace = 4095}) == 2);
  const int before = fake_cublas().tf32;
  forward(DType::bf16, {.tf32 = true}), forward(DType::f32, {});
  CHECK(fake_cublas().tf32 == before);
  forward(DType::f32, {.tf32 = true});
  CHECK(fake_cublas().tf32 > before);
}

TEST_CASE("no descriptor or handle of cuDNN's or cuBLAS's is left behind") {
  {
    const auto backend = cuda_backend(0);
    const auto kernel = backend->linear(5, true, {{3, 7, 1, 1}, DType::f32, {}});
    CHECK(backend->description().find("cuBLAS 13.1.0") != std::string::npos);
    CHECK(fake_cublas().things > 0);
  }
  CHECK(fake_cudnn().handles == 0);
  CHECK(fake_cudnn().descriptors == 0);
  CHECK(fake_cublas().things == 0);
}
