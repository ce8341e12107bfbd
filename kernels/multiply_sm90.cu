// Compiled for sm_90a alone: no other GPU has these instructions.
#include "kernels/ceilings.hpp"
#include "kernels/elements.hpp"
#include "kernels/multiply_sm90.hpp"

namespace lamina::cuda {

#ifdef __CUDACC__
namespace {

// Operands of the instruction: 128 registers of sums.
#define LAMINA_4(f, n) f(n), f(n + 1), f(n + 2), f(n + 3)
#define LAMINA_16(f, n) LAMINA_4(f, n), LAMINA_4(f, n + 4), LAMINA_4(f, n + 8), LAMINA_4(f, n + 12)
#define LAMINA_64(f, n) \
  LAMINA_16(f, n), LAMINA_16(f, n + 16), LAMINA_16(f, n + 32), LAMINA_16(f, n + 48)
#define LAMINA_SUM(n) "+f"(d[n])
#define LAMINA_NAMES                                                                          \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"   \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"  \
  "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"  \
  "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,"  \
  "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109" \
  ",%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,"    \
  "%127}"
#define LAMINA_WGMMA(types, transposed)                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256" types LAMINA_NAMES \
               ",%128,%129,1,1,1" transposed ";"                         \
               : LAMINA_64(LAMINA_SUM, 0), LAMINA_64(LAMINA_SUM, 64)     \
               : "l"(a), "l"(b))

template <class T>
__device__ void run(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, BF16>)
    LAMINA_WGMMA("k16.f32.bf16.bf16 ", ",0,0");
  else if constexpr (std::is_same_v<T, F16>)
    LAMINA_WGMMA("k16.f32.f16.f16 ", ",0,0");
  else
    LAMINA_WGMMA("k8.f32.tf32.tf32 ", "");
}

/// How the instruction finds a matrix: pieces of 8 rows by 16 bytes, a pair of which is 8 whole
/// rows. Where all of its elements are alike their order does not matter.
__device__ std::uint64_t whereabouts(const void* matrix) {
  constexpr std::uint64_t piece = 128, rows = 256;  // bytes from one to the next
  const auto address = std::uint64_t(__cvta_generic_to_shared(matrix));
  return (address & 0x3FFFF) >> 4 | (piece >> 4) << 16 | (rows >> 4) << 32;
}

template <class T>
__global__ void __launch_bounds__(multiply_threads, 1)
    multiply_by_wgmma(std::int64_t times, double factor, float* sums) {
  constexpr int row = 32;                                   // bytes
  __shared__ alignas(128) T matrix[256 * row / sizeof(T)];  // A has the first 64 rows of B
  for (int i = int(threadIdx.x); i < int(std::size(matrix)); i += multiply_threads)
    matrix[i] = T(float(factor));
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const std::uint64_t at = whereabouts(matrix);
  float d[128] = {};
  for (std::int64_t n = 0; n < times; ++n) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    LAMINA_UNROLL
    for (int k = 0; k < wgmma_steps; ++k) run<T>(d, at, at);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float all = d[0];
  LAMINA_UNROLL
  for (int i = 1; i < 128; ++i) all = d[i] < all ? d[i] : all;  // they are all alike
  sums[std::int64_t(blockIdx.x) * multiply_threads + threadIdx.x] = all;
}

}  // namespace

cudaError_t multiply_by_wgmma(cudaStream_t stream, DType t, int blocks, std::int64_t times,
                              double factor, float* sums) {
  const auto start = [&](auto kernel) {
    return launch(stream, dim3(unsigned(blocks)), dim3(multiply_threads), kernel, times, factor,
                  sums);
  };
  if (t == DType::f32) return start(multiply_by_wgmma<float>);
  if (t == DType::bf16) return start(multiply_by_wgmma<BF16>);
  if (t == DType::f16) return start(multiply_by_wgmma<F16>);
  return cudaErrorInvalidValue;
}
#else
cudaError_t multiply_by_wgmma(cudaStream_t, DType, int, std::int64_t, double, float*) {
  return cudaErrorInvalidValue;
}
#endif

}  // namespace lamina::cuda
