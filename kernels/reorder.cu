// Layouts: squares of elements go through shared memory, so that both sides are run through in
// order.
#include "elements.hpp"
#include "reorder.hpp"

namespace lamina::cuda {

namespace {

constexpr int side = 32, rows_at_once = 8, threads = side * rows_at_once;

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
  const std::int64_t step = std::int64_t(gridDim.x) * threads;
  for (std::int64_t i = std::int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += step)
    y[i] = narrow<Y>(widen(x[i]));
}

dim3 grid_of(std::int64_t blocks) { return dim3(unsigned(std::min(blocks, most_blocks))); }

}  // namespace

cudaError_t reorder(cudaStream_t stream, DType x_type, const void* x, DType y_type, void* y,
                    std::int64_t n, std::int64_t a, std::int64_t b) {
  const std::int64_t count = n * a * b;
  if (count == 0) return cudaSuccess;
  return with_elements(x_type, [&]<class X>(X) {
    return with_elements(y_type, [&]<class Y>(Y) {
      const auto* const from = static_cast<const X*>(x);
      auto* const to = static_cast<Y*>(y);
      if (a == 1 || b == 1)
        return launch(stream, grid_of((count + threads - 1) / threads), dim3(threads),
                      convert_all<X, Y>, from, to, count);
      const std::int64_t squares = n * ((a + side - 1) / side) * ((b + side - 1) / side);
      return launch(stream, grid_of(squares), dim3(side, rows_at_once), transpose<X, Y>, from, to,
                    n, a, b);
    });
  });
}

}  // namespace lamina::cuda
