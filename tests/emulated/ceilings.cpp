// What the loops that are asked for their speed compute.
#include "kernels/ceilings.hpp"

#include "made.hpp"

using namespace lamina;
using namespace lamina::test;
using cuda::Multiply;

namespace {

constexpr int blocks = 5;

template <class Sum>
Values sums_of(Multiply how, DType t, std::int64_t times) {
  const There<Sum> sums(std::size_t(blocks * cuda::multiply_threads), Sum(std::nan("")));
  ok(cuda::multiply(nullptr, how, t, blocks, times, 0.5, sums.data()));
  return wide(sums);
}

Values all_of(double each) { return Values(std::size_t(blocks * cuda::multiply_threads), each); }

#ifndef LAMINA_EMULATED
/// Products of a half with itself.
template <class Sum>
void compare_products(Multiply how, DType t) {
  CAPTURE(int(how), name(t));
  for (const std::int64_t times : {1, 7})
    CHECK(sums_of<Sum>(how, t, times) ==
          all_of(0.25 * double(times * cuda::multiply_depth(how, t))));
}
#endif

}  // namespace

TEST_CASE("loops of multiply-adds on a GPU do all that they say") {
  // s = (s + 1) / 2 from 0 on.
  CHECK(sums_of<float>(Multiply::fma, DType::f32, 1) == all_of(1 - 0x1p-16));
  CHECK(sums_of<double>(Multiply::fma, DType::f64, 1) == all_of(1 - 0x1p-16));
  CHECK(sums_of<double>(Multiply::fma, DType::f64, 3) == all_of(1 - 0x1p-48));
  CHECK(cuda::multiply(nullptr, Multiply::fma, DType::bf16, 1, 1, 1, nullptr) != cudaSuccess);
  CHECK(cuda::multiply_flops(Multiply::fma, DType::f32) == 2.0 * 16 * 8 * 256);
  CHECK(cuda::multiply_flops(Multiply::mma, DType::bf16) == 2.0 * 16 * 8 * 16 * 16 * 8 * 8);
  CHECK(cuda::multiply_flops(Multiply::wgmma, DType::f32) == 2.0 * 64 * 256 * 8 * 16 * 2);
}

#ifndef LAMINA_EMULATED
TEST_CASE("tensor cores do all that is counted") {
  compare_products<double>(Multiply::mma, DType::f64);
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    compare_products<float>(Multiply::mma, t);
  cudaDeviceProp gpu;
  ok(cudaGetDeviceProperties(&gpu, 0));
  if (gpu.major != 9) return;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    compare_products<float>(Multiply::wgmma, t);
}
#endif

TEST_CASE("loops through memory on a GPU go through all of it") {
  for (const std::int64_t n : {4, 1024, 20000, 40004}) {
    CAPTURE(n);
    // Whole numbers: sums and products are exact.
    Values b = random_values(n, 1), c = random_values(n, 2);
    for (Values* values : {&b, &c})
      for (double& v : *values) v = std::round(8 * v);
    const There<float> x = there<float>(b), y = there<float>(c), sum(std::size_t(n), NAN);
    ok(cuda::triad(nullptr, sum.data(), x.data(), y.data(), n, 0.5F, 2));
    Values want = b;
    double all = 0;
    for (std::size_t i = 0; i < b.size(); ++i) want[i] += 0.5 * c[i], all += b[i];
    CHECK(wide(sum) == want);

    const There<double> parts(std::size_t(cuda::most_blocks));
    ok(cuda::read_all(nullptr, x.data(), n, 3, parts.data()));
    double got = 0;
    for (const double part : wide(parts)) got += part;
    CHECK(got == 3 * all);

    ok(cuda::scale_all(nullptr, x.data(), n, 0.5F, 2));
    for (double& v : b) v /= 4;
    CHECK(wide(x) == b);
  }
}
