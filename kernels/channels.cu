// Local response normalisation: neighbours are found in the caches, or in shared memory what is
// costly to compute of them. Softmax: a warp for each position.
#include "channels.hpp"
#include "divisor.hpp"
#include "elements.hpp"
#include "warps.hpp"

#include <cmath>
#include <limits>

namespace lamina::cuda {

namespace {

constexpr int threads = 256;
/// Elements that a block looks at, one after the other in memory, before it goes on to others.
constexpr int span = 1024;

template <class W>
struct Neighbours {
  W alpha, beta, k;  ///< alpha of the sum
  int half;          ///< so many on either side
  std::int64_t count;
  Divisor channels;

  explicit Neighbours(const Lrn& l)
      : alpha(W(l.geometry.alpha / double(l.geometry.size))),
        beta(W(l.geometry.beta)),
        k(W(l.geometry.k)),
        half(int(std::min<std::int64_t>(l.geometry.size / 2, l.channels - 1))),
        count(l.rows * l.channels),
        channels(l.channels) {}

  /// The sum of what f(j) has of the element of channel c, j = 0, and of those around it.
  template <class F>
  __device__ W sum_around(int c, const F& f) const {
    W sum = 0;
    const int last = std::min(half, channels.by() - 1 - c);
    for (int j = -std::min(half, c); j <= last; ++j) sum += f(j);
    return sum;
  }
  /// d of the element of channel c at x.
  template <class T>
  __device__ W scale(const T* x, int c) const {
    return k + alpha * sum_around(c, [&](int j) { return widen(x[j]) * widen(x[j]); });
  }
  /// d^-beta. By way of a logarithm, which costs half of what pow() does.
  __device__ W power(W d) const { return std::exp2(-beta * std::log2(d)); }

  /// Calls f(channel, number) for elements from number `begin` on, of which `first` is the channel
  /// of that of number 0: those of this thread less than `end`.
  template <class F>
  __device__ void each(int first, int begin, int end, const F& f) const {
    for (int i = begin + int(threadIdx.x); i < end; i += threads) {
      const int c = first + i;
      f(c - channels.quotient(c) * channels.by(), i);
    }
  }
};

template <class T>
__global__ void normalize(Neighbours<Wide<T>> of, const T* x, T* y) {
  const std::int64_t step = std::int64_t(gridDim.x) * span;
  for (std::int64_t start = std::int64_t(blockIdx.x) * span; start < of.count; start += step) {
    const int end = int(std::min<std::int64_t>(span, of.count - start));
    of.each(int(start % of.channels.by()), 0, end, [&](int c, int i) {
      const T* const at = x + start + i;
      y[start + i] = narrow<T>(widen(*at) * of.power(of.scale(at, c)));
    });
  }
}

/// What is summed around each element is computed once for all that it is around of, `half` more on
/// either side than there are results.
template <class T>
__global__ void normalize_grad(Neighbours<Wide<T>> of, const T* x, const T* dy, T* dx) {
  using W = Wide<T>;
  __shared__ W powers[span], terms[span];
  const int results = span - 2 * of.half;
  const std::int64_t step = std::int64_t(gridDim.x) * results;
  for (std::int64_t start = std::int64_t(blockIdx.x) * results; start < of.count; start += step) {
    // Number 0 is the first one that is around a result, number `half` the first that has one.
    const std::int64_t origin = start - of.half;
    const int first = int(start % of.channels.by()) + of.channels.by() - of.half;
    const int begin = int(std::max<std::int64_t>(-origin, 0));
    of.each(first, begin, int(std::min<std::int64_t>(span, of.count - origin)), [&](int c, int i) {
      const T* const at = x + origin + i;
      const W d = of.scale(at, c), power = of.power(d);
      powers[i] = power, terms[i] = widen(dy[origin + i]) * widen(*at) * power / d;
    });
    __syncthreads();
    const int end = int(std::min<std::int64_t>(of.half + results, of.count - origin));
    of.each(first, of.half, end, [&](int c, int i) {
      const W around = of.sum_around(c, [&](int j) { return terms[i + j]; });
      dx[origin + i] = narrow<T>(widen(dy[origin + i]) * powers[i] -
                                 2 * of.alpha * of.beta * widen(x[origin + i]) * around);
    });
    __syncthreads();
  }
}

template <class T>
__global__ void take_softmax(std::int64_t rows, int channels, const T* x, T* y) {
  each_row_of_warp(rows, [&](std::int64_t row, int lane) {
    const T* const in = x + row * channels;
    Wide<T> most = -std::numeric_limits<Wide<T>>::infinity();
    for (int c = lane; c < channels; c += warp)
      if (most < widen(in[c])) most = widen(in[c]);
    const auto top = Wide<T>(warp_largest(most));
    double sum = 0;
    for (int c = lane; c < channels; c += warp) sum += std::exp(widen(in[c]) - top);
    const auto whole = Wide<T>(warp_sum(sum));
    for (int c = lane; c < channels; c += warp)
      y[row * channels + c] = narrow<T>(std::exp(widen(in[c]) - top) / whole);
  });
}

template <class T>
__global__ void take_softmax_grad(std::int64_t rows, int channels, const T* y, const T* dy, T* dx) {
  each_row_of_warp(rows, [&](std::int64_t row, int lane) {
    const T *const p = y + row * channels, *const g = dy + row * channels;
    double sum = 0;
    for (int c = lane; c < channels; c += warp) sum += double(widen(p[c])) * widen(g[c]);
    const auto dot = Wide<T>(warp_sum(sum));
    for (int c = lane; c < channels; c += warp)
      dx[row * channels + c] = narrow<T>(widen(p[c]) * (widen(g[c]) - dot));
  });
}

template <class Kernel, class... Arguments>
cudaError_t launch_spans(cudaStream_t stream, const Lrn& l, int results, Kernel kernel,
                         Arguments... arguments) {
  const std::int64_t blocks = (l.rows * l.channels + results - 1) / results;
  return launch(stream, dim3(unsigned(std::min(blocks, most_blocks))), dim3(threads), kernel,
                arguments...);
}

}  // namespace

cudaError_t lrn(cudaStream_t stream, const Lrn& l, const void* x, void* y) {
  return with_elements(l.dtype, [&]<class T>(T) {
    return launch_spans(stream, l, span, normalize<T>, Neighbours<Wide<T>>(l),
                        static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t lrn_grad(cudaStream_t stream, const Lrn& l, const void* x, const void* dy, void* dx) {
  return with_elements(l.dtype, [&]<class T>(T) {
    const Neighbours<Wide<T>> of(l);
    static_assert(2 * most_neighbours < span);
    if (of.half > most_neighbours) return cudaErrorInvalidValue;
    return launch_spans(stream, l, span - 2 * of.half, normalize_grad<T>, of,
                        static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

cudaError_t softmax(cudaStream_t stream, DType dtype, std::int64_t rows, int channels,
                    const void* x, void* y) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_rows(stream, rows, take_softmax<T>, rows, channels, static_cast<const T*>(x),
                       static_cast<T*>(y));
  });
}

cudaError_t softmax_grad(cudaStream_t stream, DType dtype, std::int64_t rows, int channels,
                         const void* y, const void* dy, void* dx) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_rows(stream, rows, take_softmax_grad<T>, rows, channels, static_cast<const T*>(y),
                       static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

}  // namespace lamina::cuda
