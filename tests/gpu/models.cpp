// Every convolution and linear layer of every model, as the CUDA back end computes it, against the
// reference in f64.
#include "gpu/models.hpp"

#include "catch.hpp"
#include "gpu/weighted.hpp"

#include <atomic>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

#ifdef LAMINA_EMULATED
constexpr double most_products = 3e5;  // plain loops compute them
#else
constexpr double most_products = INFINITY;
#endif

double products(const cuda::Convolution& c) {
  return double(c.y().size()) * double(c.w().size() / c.w().n);
}

struct Right {
  cuda::Convolution of;
  Operands in;
  std::vector<Values> out;
};

/// Of as many threads as there are: the reference computes on one.
std::vector<Right> by_reference(DType t) {
  std::vector<Right> all;
  for (const auto& [name, c] : convolutions(t, 8, {"data"}))
    if (products(c) <= most_products) all.push_back({c, {}, {}});
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i)
    threads.emplace_back([&] {
      const Reference reference;
      for (std::size_t n = next++; n < all.size(); n = next++) {
        Right& r = all[n];
        const auto k = reference.conv(r.of.geometry, {r.of.x, DType::f64, {}}, r.of.epilogue);
        r.in = operands_of(*k, t);
        r.out = run(reference, *k, r.in, DType::f64);
      }
    });
  threads.clear();
  return all;
}

void compare_models(DType t) {
  const auto backend = cuda_backend(0);
  int compared = 0;
  for (const Right& r : by_reference(t)) {
    CAPTURE(r.of.text(Pass::forward));
    const auto k = backend->conv(r.of.geometry, {r.of.x, t, {}}, r.of.epilogue);
    CAPTURE(k->algorithm);
    const auto got = run(*backend, *k, r.in, wide(t));
    REQUIRE(got.size() == r.out.size());
    const Shape w = r.of.w(), y = r.of.y();
    const double terms[] = {double(w.size() / w.n), double(w.size() / w.c), double(y.n * y.h * y.w),
                            double(y.n * y.h * y.w)};
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(difference(got[i], r.out[i]) < close_to(t, terms[i], is_loose(k->algorithm, i)));
    }
    ++compared;
  }
  CHECK(compared > 2);
}

}  // namespace

TEST_CASE("convolutions of all models equal the reference, in bf16") {
  compare_models(DType::bf16);
}
TEST_CASE("convolutions of all models equal the reference, in f32") { compare_models(DType::f32); }
TEST_CASE("convolutions of all models equal the reference, in f16") { compare_models(DType::f16); }
TEST_CASE("convolutions of all models equal the reference, in f64") { compare_models(DType::f64); }
