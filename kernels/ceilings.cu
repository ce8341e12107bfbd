#include "kernels/ceilings.hpp"
#include "kernels/flat.hpp"
#include "kernels/multiply_sm90.hpp"
#include "kernels/warps.hpp"

namespace lamina::cuda {

namespace {

constexpr int chains = 8;  // of a thread, none of which waits for another
constexpr int steps = 16;  // of a chain, each time

template <class T>
__global__ void multiply_by_fma(std::int64_t times, T factor, T* sums) {
  T s[chains];
  LAMINA_UNROLL
  for (int c = 0; c < chains; ++c) s[c] = T(0);
  for (std::int64_t n = 0; n < times; ++n) {
    LAMINA_UNROLL
    for (int k = 0; k < steps; ++k) {
      LAMINA_UNROLL
      for (int c = 0; c < chains; ++c) s[c] = s[c] * factor + factor;
    }
  }
  T all = s[0];
  LAMINA_UNROLL
  for (int c = 1; c < chains; ++c) all = s[c] < all ? s[c] : all;  // they are all alike
  sums[std::int64_t(blockIdx.x) * multiply_threads + threadIdx.x] = all;
}

#ifdef __CUDACC__
#define LAMINA_MMA(types)                                                                      \
  asm volatile("mma.sync.aligned." types " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

/// What a warp multiplies by one instruction: 16 rows by 8 columns. A thread has 4 of the sums.
template <class T>
struct Mma {
  using Word = std::uint32_t;
  using Sum = float;
  static constexpr int words_of_a = 4, words_of_b = 2;
  __device__ static void run(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) {
    if constexpr (std::is_same_v<T, BF16>)
      LAMINA_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    else if constexpr (std::is_same_v<T, F16>)
      LAMINA_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    else
      LAMINA_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  }
};
template <>
struct Mma<double> {
  using Word = double;
  using Sum = double;
  static constexpr int words_of_a = 2, words_of_b = 1;
  __device__ static void run(double (&d)[4], const Word (&a)[2], const Word (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
        "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#else  // 8 rows at a time
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a[0]), "d"(b[0]));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
                 : "+d"(d[2]), "+d"(d[3])
                 : "d"(a[1]), "d"(b[0]));
#endif
  }
};

/// `factor` in all parts of a register.
template <class T>
__device__ typename Mma<T>::Word filled(double factor) {
  if constexpr (std::is_same_v<T, double>)
    return factor;
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<std::uint32_t>(float(factor));
  else
    return narrow_two(T{}, float(factor), float(factor));
}

template <class T>
__global__ void multiply_by_mma(std::int64_t times, double factor, typename Mma<T>::Sum* sums) {
  using M = Mma<T>;
  typename M::Word a[M::words_of_a], b[M::words_of_b];
  LAMINA_UNROLL
  for (auto& word : a) word = filled<T>(factor);
  LAMINA_UNROLL
  for (auto& word : b) word = filled<T>(factor);
  typename M::Sum d[chains][4] = {};
  for (std::int64_t n = 0; n < times; ++n) {
    LAMINA_UNROLL
    for (int k = 0; k < steps; ++k) {
      LAMINA_UNROLL
      for (int c = 0; c < chains; ++c) M::run(d[c], a, b);
    }
  }
  auto all = d[0][0];
  LAMINA_UNROLL
  for (int c = 0; c < chains; ++c) {
    LAMINA_UNROLL
    for (int i = 0; i < 4; ++i) all = d[c][i] < all ? d[c][i] : all;
  }
  sums[std::int64_t(blockIdx.x) * multiply_threads + threadIdx.x] = all;
}

template <class T>
cudaError_t start_mma(cudaStream_t stream, int blocks, std::int64_t times, double factor,
                      void* sums) {
  return launch(stream, dim3(unsigned(blocks)), dim3(multiply_threads), multiply_by_mma<T>, times,
                factor, static_cast<typename Mma<T>::Sum*>(sums));
}
#endif

/// As each_element(), `times` times. A block goes on where another one has been, whose caches are
/// not its own: what all of a GPU have in common is to be found out.
template <class Read, class Use>
__device__ void go_round(std::int64_t count, std::int64_t times, const Read& read, const Use& use) {
  constexpr std::int64_t step = flat_threads * 4, stride = step * batch;
  for (std::int64_t t = 0; t < times; ++t) {
    const std::int64_t block = (blockIdx.x + t) % gridDim.x;
    each_item<batch>(block * stride + std::int64_t(threadIdx.x) * 4, step, stride * gridDim.x,
                     count, read, use);
  }
}

__global__ void triad_loop(float* a, const float* b, const float* c, std::int64_t n, float s,
                           std::int64_t times) {
  struct Two {
    Pack<float, 4> b, c;
  };
  go_round(
      n, times,
      [&](std::int64_t i) {
        return Two{load<4>(b + i), load<4>(c + i)};
      },
      [&](std::int64_t i, const Two& two) {
        float sums[4];
        LAMINA_UNROLL
        for (int v = 0; v < 4; ++v) sums[v] = two.b[v] + s * two.c[v];
        store(a + i, Pack<float, 4>(sums));
      });
}

__global__ void read_loop(const float* x, std::int64_t n, std::int64_t times, double* parts) {
  float sums[4] = {};
  go_round(
      n, times, [&](std::int64_t i) { return load<4>(x + i); },
      [&](std::int64_t, const Pack<float, 4>& pack) {
        LAMINA_UNROLL
        for (int v = 0; v < 4; ++v) sums[v] += pack[v];
      });
  __shared__ double of_warps[flat_threads / warp];
  const double sum = warp_sum(double(sums[0]) + sums[1] + sums[2] + sums[3]);
  if (threadIdx.x % warp == 0) of_warps[threadIdx.x / warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  double all = 0;
  for (const double each : of_warps) all += each;
  parts[blockIdx.x] = all;
}

__global__ void scale_loop(float* x, std::int64_t n, float s, std::int64_t times) {
  go_round(
      n, times, [&](std::int64_t i) { return load<4>(x + i); },
      [&](std::int64_t i, const Pack<float, 4>& pack) {
        float products[4];
        LAMINA_UNROLL
        for (int v = 0; v < 4; ++v) products[v] = s * pack[v];
        store(x + i, Pack<float, 4>(products));
      });
}

}  // namespace

int multiply_depth(Multiply how, DType t) {
  if (how == Multiply::fma) return steps;
  const int depth = t == DType::f64 ? 4 : t == DType::f32 ? 8 : 16;
  return depth * (how == Multiply::wgmma ? wgmma_steps : steps);
}

double multiply_flops(Multiply how, DType t) {
  const double depth = multiply_depth(how, t);
  switch (how) {
    case Multiply::fma:
      return 2.0 * depth * chains * multiply_threads;
    case Multiply::mma:
      return 2.0 * depth * 16 * 8 * chains * (multiply_threads / warp);
    case Multiply::wgmma:
      return 2.0 * depth * 64 * 256 * (multiply_threads / (4 * warp));
  }
  return 0;
}

cudaError_t multiply(cudaStream_t stream, Multiply how, DType t, int blocks, std::int64_t times,
                     double factor, void* sums) {
  const auto fma = [&]<class T>(T) {
    return launch(stream, dim3(unsigned(blocks)), dim3(multiply_threads), multiply_by_fma<T>, times,
                  T(factor), static_cast<T*>(sums));
  };
  if (how == Multiply::fma && t == DType::f32) return fma(float());
  if (how == Multiply::fma && t == DType::f64) return fma(double());
#ifdef __CUDACC__
  if (how == Multiply::wgmma)
    return multiply_by_wgmma(stream, t, blocks, times, factor, static_cast<float*>(sums));
  if (how == Multiply::mma && t == DType::f64)
    return start_mma<double>(stream, blocks, times, factor, sums);
  if (how == Multiply::mma && t == DType::f32)
    return start_mma<float>(stream, blocks, times, factor, sums);
  if (how == Multiply::mma && t == DType::bf16)
    return start_mma<BF16>(stream, blocks, times, factor, sums);
  if (how == Multiply::mma && t == DType::f16)
    return start_mma<F16>(stream, blocks, times, factor, sums);
#endif
  return cudaErrorInvalidValue;
}

cudaError_t triad(cudaStream_t stream, float* a, const float* b, const float* c, std::int64_t n,
                  float s, std::int64_t times) {
  return launch_flat<4>(stream, n, triad_loop, a, b, c, n, s, times);
}
cudaError_t read_all(cudaStream_t stream, const float* x, std::int64_t n, std::int64_t times,
                     double* parts) {
  return launch_flat<4>(stream, n, read_loop, x, n, times, parts);
}
cudaError_t scale_all(cudaStream_t stream, float* x, std::int64_t n, float s, std::int64_t times) {
  return launch_flat<4>(stream, n, scale_loop, x, n, s, times);
}

}  // namespace lamina::cuda
