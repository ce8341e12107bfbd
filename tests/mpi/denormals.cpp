// What programs that run() starts make of numbers too small for full precision.
#include "catch.hpp"
#include "mpi/world.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

using namespace lamina;
using lamina::test::world;

namespace {

constexpr std::uint32_t sign = 1u << 31, small = sign | 0x000fffff;  // as f32: -1.5e-39

Tensor filled_with_small() {
  Tensor x({1, 1, 1000, 1000}, DType::f32);
  std::ranges::fill(x.view().elements<float>(), std::bit_cast<float>(small));
  return x;
}

bool all_zero(const View& x) {
  return std::ranges::all_of(x.elements<std::uint32_t>(),
                             [](auto v) { return (v | sign) == sign; });
}

bool flushes() {
  const volatile float x = std::bit_cast<float>(small);
  const volatile float y = x * 0.5f;
  return std::bit_cast<std::uint32_t>(float(y)) == sign;
}

}  // namespace

#ifdef __SSE2__
TEST_CASE("numbers too small for full precision are zero on every thread") {
  CHECK(flushes());
  bool there = false;
  std::thread([&] { there = flushes(); }).join();
  CHECK(there);

  const int before = threads();
  set_threads(3);
  Stream stream;
  for (const std::string& name : std::vector<std::string>{"reference", "auto"}) {
    CAPTURE(name);
    const auto on = make_backend(name, DType::f32);
    const Tensor x = filled_with_small();
    const auto pool = on->pool({.kind = PoolGeometry::Kind::average}, x.view().form());
    const Tensor y(pool->output);
    pool->forward(stream, x, y);
    CHECK(all_zero(y));
  }
  set_threads(before);

  const Tensor x = filled_with_small();
  world().comm().all_reduce(stream, Pass::weight_grad, x).wait(stream);
  CHECK(all_zero(x));
}
#endif
