// OpenMP may give fewer threads than it says there are. CTest runs this file again where it does:
// libgomp reads such variables before a program starts.
#include "support/splits.hpp"

#include <omp.h>

#include <future>

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
auto in_new_thread(Body&& body) {
  return std::async(std::launch::async, std::forward<Body>(body)).get();
}

/// The network by this back end, and a step of it.
struct Made {
  Made(std::shared_ptr<const Backend> backend, const StepOn& o)
      : how(o), placed(place_on(net, how, {}, std::move(backend))) {}
  Whole step() {
    Whole whole;
    std::mutex mutex;
    step_of(placed, net, how, {}, whole, mutex);
    return whole;
  }

  Network net = small();
  StepOn how;
  PlacedNetwork placed;
};

/// A step of what was placed in another thread.
Whole step_in_threads(const std::shared_ptr<const Backend>& backend, DType dtype, int asked) {
  std::optional<Made> made;
  in_new_thread(
      [&] { made.emplace(backend, StepOn{.dtype = dtype, .batch = 8, .threads = asked}); });
  return in_new_thread([&] {
    if (asked > 0) set_threads(asked);
    return made->step();
  });
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
  if (!has_onednn()) {
    WARN("no oneDNN: nothing to test");
    return;
  }
  const Whole right = step_in_threads(reference_backend(), DType::f64, 0);
  for (const std::string only : {"", "jit"})  // all that is oneDNN's, where it has it
    for (const int asked : {0, 3, omp_get_num_procs() + 1}) {
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
  const StepOn in_f32{.dtype = DType::f32, .batch = 8};
  Whole within;
  std::string said;
  int outside = 0, after = 0;
  in_new_thread([&] {
    set_threads(2);
    outside = threads();
    Made made(backend, in_f32);
#pragma omp parallel num_threads(2)
#pragma omp single
    {
      within = Made(backend, in_f32).step();
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
