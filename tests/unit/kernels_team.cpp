// OpenMP may give fewer threads than it says there are. CTest runs this file again where it does:
// libgomp reads such variables before a program starts.
#include "support/splits.hpp"

#include <omp.h>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Of which oneDNN shares out all three passes by the number of threads.
Network small() {
  Network net({.c = 16, .h = 20, .w = 20});
  net.add<Conv2D>({.channels = 32, .kernel = 3, .pad = 1}, "conv");
  net.add<ReLU>({}, "relu");
  net.add<GlobalAvgPool>({}, "pool");
  net.add<Linear>({.features = 10}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// In a thread that knows nothing but what OpenMP was told.
template <class Body>
void in_new_thread(Body&& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

/// The network, placed for 8 samples of which the last has no label.
struct Made {
  Made(std::shared_ptr<const Backend> with, DType dtype)
      : backend(std::move(with)),
        placed(net.place({.batch = 8, .backend = backend, .dtype = dtype})) {
    placed.initialize(7);
  }

  Whole step() {
    const View x = placed.x();
    visit(x.dtype, [&]<Floating T>(T) {
      for (std::int64_t i = 0; i < x.shape.size(); ++i)
        x.as<T>()[i] = T(Random(1).normal(std::uint64_t(i)));
    });
    const Tensor labels({8, 1, 1, 1}, DType::i32);
    for (std::int32_t i = 0; i < 8; ++i) labels.as<std::int32_t>()[i] = i == 7 ? -1 : i;
    Stream stream;
    Context context{stream, true};
    context.targets = labels;
    placed.forward(context);
    placed.backward(context);
    Whole whole;
    whole.y = numbers(placed.y());
    for (const auto& n : placed.parameters()) {
      n.parameter->wait(stream);
      const Tensor plain(n.parameter->grad.shape, n.parameter->grad.dtype);
      backend->copy(n.parameter->grad, plain);
      whole.parameters[n.name] = numbers(plain);
    }
    return whole;
  }

  Network net = small();
  std::shared_ptr<const Backend> backend;
  PlacedNetwork placed;
};

/// A step of what was placed in another thread.
Whole step_in_threads(const std::shared_ptr<const Backend>& backend, DType dtype, int asked) {
  std::optional<Made> made;
  Whole whole;
  in_new_thread([&] {
    if (asked > 0) set_threads(asked);
    made.emplace(backend, dtype);
  });
  in_new_thread([&] {
    if (asked > 0) set_threads(asked);
    whole = made->step();
  });
  return whole;
}

}  // namespace

TEST_CASE("there are as many threads as OpenMP gives, also where more were asked for", "[team]") {
  std::vector<std::pair<int, int>> counts;
  for (const int asked : {0, 1, 3, omp_get_num_procs() + 1})
    in_new_thread([&] {
      if (asked > 0) set_threads(asked);
      const int said = threads();
      int came = 0;
#pragma omp parallel
#pragma omp single
      came = omp_get_num_threads();
      counts.emplace_back(said, came);
    });
  for (const auto& [said, came] : counts) CHECK(said == came);
}

TEST_CASE("a step is right however few threads OpenMP gives", "[team]") {
  const Whole right = step_in_threads(reference_backend(), DType::f64, 0);
  if (!has_onednn()) WARN("no oneDNN: nothing to test");
  for (const std::string only : {"", "jit"})  // all that is oneDNN's, where it has it
    for (const int asked : {0, 3, omp_get_num_procs() + 1}) {
      if (!has_onednn()) break;
      std::string where;
      const double apart = difference(
          right, step_in_threads(onednn_backend({.only = only}), DType::f32, asked), &where);
      CAPTURE(only, asked, where);
      CHECK(apart < 1e-4);
    }
}

TEST_CASE("a step within a parallel region is right, or refused where it was made outside") {
  if (!has_onednn()) {
    WARN("no oneDNN: nothing to test");
    return;
  }
  const Whole right = step_in_threads(reference_backend(), DType::f64, 0);
  const auto backend = onednn_backend({.only = "jit"});
  Whole within;
  std::string said;
  int outside = 0, after = 0;
  in_new_thread([&] {
    set_threads(2);
    outside = threads();
    Made made(backend, DType::f32);
#pragma omp parallel num_threads(2)
#pragma omp single
    {
      within = Made(backend, DType::f32).step();
      try {
        made.step();
      } catch (const Error& e) {
        said = e.what();
      }
    }
    after = threads();
  });
  CHECK(after == outside);
  CHECK(difference(right, within) < 1e-4);
  CHECK((outside == 1 || said.find("was made for 2 threads, and OpenMP gives 1") != said.npos));
}
