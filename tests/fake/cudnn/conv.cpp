// Convolutions of the CUDA back end on the stand-in for cuDNN: what they cost, which way is taken,
// and what goes wrong.
#include "catch.hpp"
#include "fake/cudnn/stand_in.hpp"
#include "fake/runtime.hpp"
#include "gpu/weighted.hpp"

#include <lamina/kernels/gpu_name.hpp>

using namespace lamina;
using namespace lamina::test;

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
  const auto first = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  const FakeCudnn before = fake_cudnn();
  const auto second = backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  CHECK(fake_cudnn().runs == before.runs);
  CHECK(fake_cudnn().plans == before.plans + 3);  // those that are taken
  CHECK(second->algorithm == first->algorithm);
  CHECK(first->algorithm.starts_with("cudnn:"));
  CHECK(fake_cudnn().runs[2] == 0);  // it would be compiled at run time
}

TEST_CASE("ways of cuDNN's that cannot be planned are passed over") {
  const auto backend = cuda_backend(0);
  const auto make = [&] { return backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}}); };
  refuse_engines({1});
  CHECK(make()->algorithm == "cudnn:0");
  refuse_engines({0, 1});
  CHECK_THROWS_WITH(make(), Catch::StartsWith("cuDNN has nothing for conv forward 2x6x7x5") &&
                                Catch::Contains("; cuDNN: make a plan: refused"));
  refuse_engines({});
}

TEST_CASE("cuDNN's ways are those that a back end's name allows") {
  const auto times = std::make_shared<Verdicts>();
  const auto made = [&](DType t, const Demands& demands) {
    const auto backend = cuda_backend(0, {.demands = demands, .verdicts = times});
    CHECK(GpuName::of(backend->name())->text() == GpuName{.demands = demands}.text());
    return backend->conv(geometries[3], {{2, 6, 7, 5}, t, {}})->algorithm;
  };
  const std::string only_0 = "cudnn:0", only_1 = "cudnn:1";
  const auto note = [](auto what) { note_of_engines({1}, what), refuse_engines({0}); };
  const auto nothing = Catch::StartsWith("cuDNN has nothing for");

  note(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  CHECK_THROWS_WITH(made(DType::f32, {}), nothing);
  CHECK(made(DType::f32, {.tf32 = true}) == only_1);
  CHECK(made(DType::bf16, {}) == only_1);

  note(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  CHECK_THROWS_WITH(made(DType::f32, {.deterministic = true}),
                    nothing && Catch::Contains(":deterministic"));
  CHECK(made(DType::f32, {}) == only_1);

  note(CUDNN_NUMERICAL_NOTE_WINOGRAD);
  CHECK(made(DType::f32, {}) == only_1 + ":winograd");

  note_of_engines({}, {});
  CHECK_THROWS_WITH(made(DType::f32, {.most_workspace = 4095}),
                    nothing && Catch::Contains(":workspace=4095"));
  CHECK(made(DType::f32, {.most_workspace = 4096}) == only_1);
  refuse_engines({});
  CHECK(made(DType::f32, {.most_workspace = 4095}) == only_0);
}

TEST_CASE("times of cuDNN's ways hold for the same demands") {
  const auto times = std::make_shared<Verdicts>();
  const auto make = [&](bool tf32) {
    const auto backend = cuda_backend(0, {.demands = {.tf32 = tf32}, .verdicts = times});
    backend->conv(geometries[3], {{2, 6, 7, 5}, DType::f32, {}});
  };
  make(false);
  const FakeCudnn before = fake_cudnn();
  make(true);  // ways are numbered: those of the two need not be the same ones
  CHECK(fake_cudnn().runs != before.runs);
}

TEST_CASE("no descriptor or handle of cuDNN's is left behind") {
  {
    const auto backend = cuda_backend(0);
    const auto kernel = backend->linear(5, true, {{3, 7, 1, 1}, DType::f32, {}});
  }
  CHECK(fake_cudnn().handles == 0);
  CHECK(fake_cudnn().descriptors == 0);
}
