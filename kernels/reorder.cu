// Layouts: rectangles of elements go through shared memory, so that both sides are run through in
// order.
#include "divisor.hpp"
#include "elements.hpp"
#include "flat.hpp"
#include "reorder.hpp"

#include <limits>

namespace lamina::cuda {

namespace {

constexpr int threads = 256, each = 8;  // elements of a thread

/// Rectangles into which images [a][b] are cut. Where there are few rows or columns they have all
/// of these, and so many of the others that threads have something to do.
class Cut {
 public:
  static constexpr std::int64_t height = 32, width = 64, most = threads * each;
  static constexpr int room = height * (width + 1);

  Cut(std::int64_t n, std::int64_t a, std::int64_t b)
      : rows(a < height  ? a
             : b < width ? std::min(a, most / (b | 1))
                         : height),
        columns(a < height ? std::min(b, (most / a - 1) | 1) : std::min(b, width)),
        across((b + columns.by() - 1) / columns.by()),
        each_image((a + rows.by() - 1) / rows.by() * across.by()),
        count(n * each_image.by()) {}

  /// Where an element is in shared memory: columns are read without conflicts.
  __device__ int at(int row, int column) const { return row * (columns.by() | 1) + column; }

  Divisor rows, columns;       ///< of a rectangle
  Divisor across, each_image;  ///< rectangles side by side, and in an image
  std::int64_t count;
};

template <class X, class Y>
__global__ void transpose(Cut cut, const X* x, Y* y, std::int64_t a, std::int64_t b) {
  __shared__ Wide<X> part[Cut::room];
  for (unsigned s = blockIdx.x; s < unsigned(cut.count); s += gridDim.x) {
    const int image = cut.each_image.quotient(int(s));
    const int i = int(s) - image * cut.each_image.by(), down = cut.across.quotient(i);
    const std::int64_t first_a = std::int64_t(down) * cut.rows.by();
    const std::int64_t first_b = std::int64_t(i - down * cut.across.by()) * cut.columns.by();
    const int rows = int(std::min<std::int64_t>(cut.rows.by(), a - first_a));
    const int columns = int(std::min<std::int64_t>(cut.columns.by(), b - first_b));
    const X* const from = x + image * a * b + first_a * b + first_b;
    Y* const to = y + image * a * b + first_b * a + first_a;
    LAMINA_UNROLL
    for (int k = 0; k < each; ++k) {
      const int e = k * threads + int(threadIdx.x);
      const int row = cut.columns.quotient(e), column = e - row * cut.columns.by();
      if (row < rows && column < columns) part[cut.at(row, column)] = widen(from[row * b + column]);
    }
    __syncthreads();
    LAMINA_UNROLL
    for (int k = 0; k < each; ++k) {
      const int e = k * threads + int(threadIdx.x);
      const int column = cut.rows.quotient(e), row = e - column * cut.rows.by();
      if (row < rows && column < columns)
        to[column * a + row] = narrow<Y>(part[cut.at(row, column)]);
    }
    __syncthreads();
  }
}

template <class X, class Y, int V>
__global__ void convert_all(const X* x, Y* y, std::int64_t count) {
  each_element<V>(
      count, [&](std::int64_t i) { return load<V>(x + i); },
      [&](std::int64_t i, const Pack<X, V>& from) {
        Wide<X> values[V];
        for (int v = 0; v < V; ++v) values[v] = from.wide(v);
        store<V>(y + i, Pack<Y, V>(values));
      });
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
      if (a == 1 || b == 1) {
        using Larger = std::conditional_t<(sizeof(X) > sizeof(Y)), X, Y>;
        return with_packs<Larger>(count, aligned(x, y), [&]<int V>(std::integral_constant<int, V>) {
          return launch_flat<V>(stream, count, convert_all<X, Y, V>, from, to, count);
        });
      }
      constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
      if (std::max(a, b) > most || n > most) return cudaErrorInvalidValue;
      const Cut cut(n, a, b);
      if (cut.count > most) return cudaErrorInvalidValue;
      const dim3 grid(unsigned(std::min(cut.count, most_blocks)));
      return launch(stream, grid, dim3(threads), transpose<X, Y>, cut, from, to, a, b);
    });
  });
}

}  // namespace lamina::cuda
