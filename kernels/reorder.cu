// Layouts: squares of elements go through shared memory, so that both sides are run through in
// order.
#include "elements.hpp"
#include "flat.hpp"
#include "reorder.hpp"

namespace lamina::cuda {

namespace {

constexpr int side = 32, rows_at_once = 8;

template <class X, class Y>
__global__ void transpose(const X* x, Y* y, std::int64_t n, std::int64_t a, std::int64_t b) {
  __shared__ Wide<X> square[side][side + 1];  // one more: columns are read without conflicts
  const std::int64_t across = (b + side - 1) / side, down = (a + side - 1) / side;
  for (std::int64_t s = blockIdx.x; s < n * across * down; s += gridDim.x) {
    const std::int64_t first_b = s % across * side, first_a = s / across % down * side;
    const std::int64_t image = s / (across * down) * a * b;
    for (int i = int(threadIdx.y); i < side; i += rows_at_once) {
      const std::int64_t ia = first_a + i, ib = first_b + threadIdx.x;
      if (ia < a && ib < b) square[i][threadIdx.x] = widen(x[image + ia * b + ib]);
    }
    __syncthreads();
    for (int i = int(threadIdx.y); i < side; i += rows_at_once) {
      const std::int64_t ia = first_a + threadIdx.x, ib = first_b + i;
      if (ia < a && ib < b) y[image + ib * a + ia] = narrow<Y>(square[threadIdx.x][i]);
    }
    __syncthreads();
  }
}

template <class X, class Y>
__global__ void convert_all(const X* x, Y* y, std::int64_t count) {
  each_element(count, [&](std::int64_t i) { y[i] = narrow<Y>(widen(x[i])); });
}

}  // namespace

cudaError_t reorder(cudaStream_t stream, DType x_type, const void* x, DType y_type, void* y,
                    std::int64_t n, std::int64_t a, std::int64_t b) {
  const std::int64_t count = n * a * b;
  if (count == 0) return cudaSuccess;
  return with_elements(x_type, [&]<class X>(X) {
    return with_elements(y_type, [&]<class Y>(Y) {
      const auto* const from = static_cast<const X*>(x);
      auto* const to = static_cast<Y*>(y);
      if (a == 1 || b == 1) return launch_flat(stream, count, convert_all<X, Y>, from, to, count);
      const std::int64_t squares = n * ((a + side - 1) / side) * ((b + side - 1) / side);
      const dim3 grid(unsigned(std::min(squares, most_blocks)));
      return launch(stream, grid, dim3(side, rows_at_once), transpose<X, Y>, from, to, n, a, b);
    });
  });
}

}  // namespace lamina::cuda
