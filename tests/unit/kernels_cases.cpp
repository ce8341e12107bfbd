// Every kernel of every back end: the reference in f64 against direct loops, its gradients against
// finite differences, and all others in f32 against it.
#include "catch.hpp"
#include "support/kernel_cases.hpp"

#include <lamina/kernels/backends.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d(dy . y)/d(operand) by central differences, at the last element and some more spread over the
/// operand; the others are taken from `analytic`.
Values finite_differences(const Case& c, Setup& setup, std::size_t operand, const Values& dy,
                          const Values& analytic) {
  auto in = c.operands();
  Values gradient = analytic;
  const std::size_t size = gradient.size(), samples = in[0].size() + size > 5000 ? 3 : 60;
  for (std::size_t i = 0; i < size;) {
    const double value = in[operand][i], h = 1e-5;
    in[operand][i] = value + h;
    const double above = dot(dy, c.run(setup, in, {})[0]);
    in[operand][i] = value - h;
    const double below = dot(dy, c.run(setup, in, {})[0]);
    in[operand][i] = value;
    gradient[i] = (above - below) / (2 * h);
    i = i + 1 == size ? size : std::min(i + 1 + size / samples, size - 1);
  }
  return gradient;
}

}  // namespace

TEST_CASE("reference kernels compute their formulas in f64") {
  const auto reference = reference_backend();
  for (const Case& c : kernel_cases()) {
    INFO(c.name);
    Setup setup{*reference};
    const auto in = c.operands();
    CHECK(difference(c.run(setup, in, {})[0], c.naive(in)) < 1e-11);
  }
}

TEST_CASE("reference gradients equal finite differences") {
  const auto reference = reference_backend();
  for (const Case& c : kernel_cases()) {
    Setup setup{*reference};
    const Values dy = c.gradient();
    const auto results = c.run(setup, c.operands(), dy);
    REQUIRE(results.size() == c.inputs.size() + 1);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      INFO(c.name << ", operand " << i);
      const Values& analytic = results[i + 1];
      CHECK(difference(analytic, finite_differences(c, setup, i, dy, analytic)) < 2e-6);
    }
  }
}

TEST_CASE("every back end in f32 agrees with the reference in f64", "[isa]") {
  const auto reference = reference_backend();
  const auto all = kernel_cases();
  std::vector<std::vector<Values>> wanted;
  for (const Case& c : all) {
    Setup f64{*reference};
    wanted.push_back(c.run(f64, c.operands(), c.gradient()));
  }
  for (const auto& backend : all_backends()) {
    for (const bool native : {false, true}) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        INFO(backend->name() << (native ? ", native layout: " : ", plain layout: ") << all[i].name);
        Setup f32{*backend, DType::f32, native};
        std::vector<Values> got;
        CHECK_NOTHROW(got = all[i].run(f32, all[i].operands(), all[i].gradient()));
        if (got.size() != wanted[i].size()) {
          FAIL_CHECK("expected " << wanted[i].size() << " results, got " << got.size());
          continue;
        }
        for (std::size_t r = 0; r < got.size(); ++r) {
          INFO((r ? text("gradient of operand ", r - 1) : std::string("y")));
          CHECK(difference(got[r], wanted[i][r]) <= all[i].tolerance);
        }
      }
    }
  }
}

TEST_CASE("kernels that run allocate nothing", "[isa]") {
  if (!counts_allocations()) return;
  for (const auto& backend : all_backends()) {
    for (const Case& c : kernel_cases()) {
      INFO(backend->name() << ": " << c.name);
      Setup setup{*backend, DType::f32, true, true};
      CHECK_NOTHROW(c.run(setup, c.operands(), c.gradient()));
      if (backend->name() == "reference") {
        CHECK(setup.allocations == 0);
      } else {
        // oneDNN builds a small map of its arguments at each execution; buffers it must not
        // allocate. Its matrix product packs its operands into one of its own at each call, of up
        // to 1.4 MiB with SSE4.1 on one thread.
        const bool product = setup.algorithm.find("gemm:") != std::string::npos;
        CHECK(setup.largest_allocation < (product ? 1500000 : 4096));
      }
    }
  }
}

TEST_CASE("reference kernels allocate nothing in f64 either, however large the product") {
  if (!counts_allocations()) return;
  const auto reference = reference_backend();
  Setup setup{*reference, DType::f64, false, true};
  for (const Case& c : kernel_cases()) {
    INFO(c.name);
    c.run(setup, c.operands(), c.gradient());
    CHECK(setup.allocations == 0);
  }
}
