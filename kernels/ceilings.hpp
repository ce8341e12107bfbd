// Loops that come as close as a kernel can to what a GPU does at most. They are asked for their
// speed; what they compute only shows that they did.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::cuda {

/// How numbers are multiplied and added up: one by one (f32, f64); by the tensor cores, operands in
/// registers (all types; f32 as TF32); by those of sm_90 alone, operands in shared memory (f32 as
/// TF32, bf16, f16).
enum class Multiply : std::uint8_t { fma, mma, wgmma };

/// Of a block: so many that the multipliers of a multiprocessor are never idle.
constexpr int multiply_threads = 256;

/// FLOP of a block that goes through its loop once.
double multiply_flops(Multiply, DType);

/// Puts `blocks` of them into the stream, each of which goes through its loop so many times. All
/// factors are `factor`, which every type has. `sums`, multiply_threads of them for each block, f64
/// for f64 and otherwise f32, become one of each thread's: with fma the `times` * 16th member of
/// s = s * factor + factor from 0 on, else what products of the factor with itself add up to,
/// `times` * multiply_depth() of them.
cudaError_t multiply(cudaStream_t, Multiply, DType, int blocks, std::int64_t times, double factor,
                     void* sums);
/// Products that go into a sum each time.
int multiply_depth(Multiply, DType);

/// Each goes so many times through n floats. n is a multiple of 4, and all begin at multiples of 16
/// bytes.
///
/// a = b + s * c.
cudaError_t triad(cudaStream_t, float* a, const float* b, const float* c, std::int64_t n, float s,
                  std::int64_t times);
/// The sum of x, `times` as large, in parts: `most_blocks` of them, of which the last are 0 where x
/// is small.
cudaError_t read_all(cudaStream_t, const float* x, std::int64_t n, std::int64_t times,
                     double* parts);
/// x = s * x.
cudaError_t scale_all(cudaStream_t, float* x, std::int64_t n, float s, std::int64_t times);

}  // namespace lamina::cuda
