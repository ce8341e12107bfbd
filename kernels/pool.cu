// Pooling: a thread for each pack of channels at a position. Neighbouring windows overlap, which
// the caches catch, so that memory is read once. The gradient of a maximum has two steps: where in
// each window the largest element is, a byte each, then what each element gets from the windows
// that cover it. Looking for the largest there would read x as often as windows have elements.
#include "divisor.hpp"
#include "elements.hpp"
#include "places.hpp"
#include "pool.hpp"

#include <bit>
#include <limits>
#include <type_traits>

namespace lamina::cuda {

namespace {

/// Windows along an axis.
struct Axis {
  int extent, positions, window, before;  ///< of x; of y; elements of a window; padding
  Divisor stride;

  Axis(std::int64_t of_x, std::int64_t of_y, std::int64_t w, std::int64_t s, std::int64_t pad)
      : extent(int(of_x)), positions(int(of_y)), window(int(w)), before(int(pad)), stride(s) {}

  /// Where a window starts, perhaps in the padding, and its part inside the image.
  __device__ int start(int position) const { return position * stride.by() - before; }
  __device__ int first(int position) const { return std::max(start(position), 0); }
  __device__ int last(int position) const { return std::min(start(position) + window, extent); }
  /// The windows that cover an element: from one to before another.
  __device__ int first_over(int i) const {
    const int rest = i + before - window;
    return rest < 0 ? 0 : stride.quotient(rest) + 1;
  }
  __device__ int last_over(int i) const {
    return std::min(stride.quotient(i + before) + 1, positions);
  }
};

struct Windows {
  Axis h, w;
  int channels;
  bool whole;  ///< an average is over the padding, too

  explicit Windows(const Pool& p, const Shape& y)
      : h(p.x.h, y.h, p.geometry.window.h, p.geometry.stride.h, p.geometry.pad.top),
        w(p.x.w, y.w, p.geometry.window.w, p.geometry.stride.w, p.geometry.pad.left),
        channels(int(p.x.c)),
        whole(p.geometry.count_padding) {}

  /// Where a sample begins, and a position in it.
  __device__ std::int64_t x_at(std::int64_t n) const { return n * h.extent * w.extent * channels; }
  __device__ std::int64_t y_at(std::int64_t n) const {
    return n * h.positions * w.positions * channels;
  }
  __device__ int x_at(int i, int j) const { return (i * w.extent + j) * channels; }
  __device__ int y_at(int p, int q) const { return (p * w.positions + q) * channels; }
  /// What the sum over a window is multiplied by.
  template <class W>
  __device__ W share(int p, int q) const {
    const int rows = whole ? h.window : h.last(p) - h.first(p);
    const int columns = whole ? w.window : w.last(q) - w.first(q);
    return 1 / (W(rows) * W(columns));
  }
};

/// Calls use(i, j, read(i, j)) for the rows and columns of a rectangle, in their order. N of them
/// are read before the first one is used.
template <int N, class Read, class Use>
__device__ void each_place(int top, int bottom, int left, int right, const Read& read,
                           const Use& use) {
  int i = left < right ? top : bottom, j = left;
  while (i < bottom) {
    decltype(read(i, j)) items[N];
    int rows[N], columns[N];
    LAMINA_UNROLL
    for (int k = 0; k < N; ++k) {
      rows[k] = i, columns[k] = j;
      if (i < bottom) items[k] = read(i, j);
      if (++j == right) j = left, ++i;
    }
    LAMINA_UNROLL
    for (int k = 0; k < N; ++k)
      if (rows[k] < bottom) use(rows[k], columns[k], items[k]);
  }
}

/// For the elements of a window of a sample at x.
template <int N, int V, class T, class F>
__device__ void each_element(const Windows& of, const T* x, int p, int q, const F& f) {
  each_place<N>(
      of.h.first(p), of.h.last(p), of.w.first(q), of.w.last(q),
      [&](int i, int j) { return load<V>(x + of.x_at(i, j)); }, f);
}

/// The larger one; NaN is larger than any number. Of 0 and -0 either.
__device__ inline double larger(double a, double b) { return a != a || a >= b ? a : b; }
__device__ inline float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  float c;  // in one step, where the compiler would take three
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  if (a == 0 && b == 0) return a + b;  // 0 is larger than -0 there, too
  return a != a || a >= b ? a : b;
#endif
}

template <class T, int V, int N>
__global__ void take_largest(Windows of, Deal deal, const T* x, T* y) {
  each_pack<V>(deal, [&](std::int64_t n, int p, int q, int channel) {
    Wide<T> best[V];
    for (int v = 0; v < V; ++v) best[v] = -std::numeric_limits<Wide<T>>::infinity();
    each_element<N, V>(of, x + of.x_at(n) + channel, p, q, [&](int, int, const Pack<T, V>& pack) {
      for (int v = 0; v < V; ++v) best[v] = larger(best[v], pack.wide(v));
    });
    store<V>(y + of.y_at(n) + of.y_at(p, q) + channel, Pack<T, V>(best));
  });
}

/// The number of the largest element of each window in the window, padding included.
template <class T, int V, int N, class Place>
__global__ void find_largest(Windows of, Deal deal, const T* x, Place* places) {
  using W = Wide<T>;
  using Bits = std::conditional_t<sizeof(W) == 4, std::uint32_t, std::uint64_t>;
  each_pack<V>(deal, [&](std::int64_t n, int p, int q, int channel) {
    const int top = of.h.start(p), left = of.w.start(q);
    W best[V];
    int place[V];
    for (int v = 0; v < V; ++v) {
      best[v] = -std::numeric_limits<W>::infinity();
      place[v] = (of.h.first(p) - top) * of.w.window + of.w.first(q) - left;
    }
    each_element<N, V>(
        of, x + of.x_at(n) + channel, p, q, [&](int i, int j, const Pack<T, V>& pack) {
          const int here = (i - top) * of.w.window + j - left;
          for (int v = 0; v < V; ++v) {
            const W next = larger(best[v], pack.wide(v) + W(0));  // so that -0 is 0
            // NaN is not equal to itself, but its bits are.
            const bool wins = std::bit_cast<Bits>(next) != std::bit_cast<Bits>(best[v]);
            best[v] = next, place[v] = wins ? here : place[v];
          }
        });
    Pack<Place, V> to;
    for (int v = 0; v < V; ++v) to.set(v, Place(place[v]));
    store<V>(places + of.y_at(n) + of.y_at(p, q) + channel, to);
  });
}

template <class T, int V, int N>
__global__ void take_average(Windows of, Deal deal, const T* x, T* y) {
  each_pack<V>(deal, [&](std::int64_t n, int p, int q, int channel) {
    Wide<T> sums[V] = {};
    each_element<N, V>(of, x + of.x_at(n) + channel, p, q, [&](int, int, const Pack<T, V>& pack) {
      for (int v = 0; v < V; ++v) sums[v] += pack.wide(v);
    });
    const auto share = of.share<Wide<T>>(p, q);
    for (int v = 0; v < V; ++v) sums[v] *= share;
    store<V>(y + of.y_at(n) + of.y_at(p, q) + channel, Pack<T, V>(sums));
  });
}

/// dx: the sum of what use(sums, i, j, p, q, read(where that is in y)) adds for each element and
/// each window that covers it.
template <class T, int V, class Read, class Use>
__device__ void gather(const Windows& of, const Deal& deal, T* dx, const Read& read,
                       const Use& use) {
  each_pack<V>(deal, [&](std::int64_t n, int i, int j, int channel) {
    Wide<T> sums[V] = {};
    const std::int64_t first = of.y_at(n) + channel;
    each_place<batch>(
        of.h.first_over(i), of.h.last_over(i), of.w.first_over(j), of.w.last_over(j),
        [&](int p, int q) { return read(first + of.y_at(p, q)); },
        [&](int p, int q, const auto& item) { use(sums, i, j, p, q, item); });
    store<V>(dx + of.x_at(n) + of.x_at(i, j) + channel, Pack<T, V>(sums));
  });
}

/// Of V windows.
template <class T, int V, class Place>
struct Largest {
  Pack<Place, V> place;
  Pack<T, V> dy;
};

template <class T, int V, class Place>
__global__ void gather_largest(Windows of, Deal deal, const Place* places, const T* dy, T* dx) {
  using From = Largest<T, V, Place>;
  gather<T, V>(
      of, deal, dx,
      [&](std::int64_t at) {
        return From{load<V>(places + at), load<V>(dy + at)};
      },
      [&](Wide<T>(&sums)[V], int i, int j, int p, int q, const From& from) {
        const int here = (i - of.h.start(p)) * of.w.window + j - of.w.start(q);
        for (int v = 0; v < V; ++v)
          if (int(from.place[v]) == here) sums[v] += from.dy.wide(v);
      });
}

/// The same for squares of 2 by 2 elements, each of which at most 2 by 2 windows cover: where these
/// are 2 apart, and no longer than 3. What a window has is read once for all of a square.
template <class T, int V>
__global__ void gather_largest_in_squares(Windows of, Deal deal, const std::uint8_t* places,
                                          const T* dy, T* dx) {
  each_pack<V>(deal, [&](std::int64_t n, int row, int column, int channel) {
    const int i = 2 * row, j = 2 * column, top = of.h.first_over(i), left = of.w.first_over(j);
    const int bottom = of.h.last_over(i + 1), right = of.w.last_over(j + 1);
    const std::int64_t first = of.y_at(n) + channel;
    Largest<T, V, std::uint8_t> windows[4];
    LAMINA_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int p = top + k / 2, q = left + k % 2;
      if (p >= bottom || q >= right) continue;
      const std::int64_t at = first + of.y_at(p, q);
      windows[k] = {load<V>(places + at), load<V>(dy + at)};
    }
    Wide<T> sums[4][V] = {};
    LAMINA_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int p = top + k / 2, q = left + k % 2;
      if (p >= bottom || q >= right) continue;
      int here[4];  // the number in the window of each element that it has
      LAMINA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int down = i + e / 2 - of.h.start(p), across = j + e % 2 - of.w.start(q);
        const bool has =
            unsigned(down) < unsigned(of.h.window) && unsigned(across) < unsigned(of.w.window);
        here[e] = has ? down * of.w.window + across : -1;
      }
      for (int v = 0; v < V; ++v) {
        const int place = windows[k].place[v];
        const Wide<T> value = windows[k].dy.wide(v);
        LAMINA_UNROLL
        for (int e = 0; e < 4; ++e)
          if (place == here[e]) sums[e][v] += value;
      }
    }
    T* const to = dx + of.x_at(n) + channel;
    LAMINA_UNROLL
    for (int e = 0; e < 4; ++e)
      if (i + e / 2 < of.h.extent && j + e % 2 < of.w.extent)
        store<V>(to + of.x_at(i + e / 2, j + e % 2), Pack<T, V>(sums[e]));
  });
}

template <class T, int V>
__global__ void gather_average(Windows of, Deal deal, const T* dy, T* dx) {
  gather<T, V>(
      of, deal, dx, [&](std::int64_t at) { return load<V>(dy + at); },
      [&](Wide<T>(&sums)[V], int, int, int p, int q, const Pack<T, V>& from) {
        const auto share = of.share<Wide<T>>(p, q);
        for (int v = 0; v < V; ++v) sums[v] += from.wide(v) * share;
      });
}

/// Whether numbers of an element in its sample, and in its window, are small enough.
bool fits(const Pool& p, const Shape& y) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const Pair window = p.geometry.window, stride = p.geometry.stride;
  return p.x.sample() <= most && y.sample() <= most && window.h + p.x.h <= most &&
         window.w + p.x.w <= most && window.h * window.w <= most && stride.h <= most &&
         stride.w <= most;
}

/// Whether a byte has the number of an element in its window.
bool small(const Pool& p) { return p.geometry.window.h * p.geometry.window.w <= 256; }

/// See gather_largest_in_squares().
bool in_squares(const Pool& p) {
  const Pair window = p.geometry.window, stride = p.geometry.stride;
  return stride.h == 2 && stride.w == 2 && window.h <= 3 && window.w <= 3;
}

/// Calls f with how many elements of a window a thread reads at once, as a type.
template <class F>
cudaError_t with_window(const Pool& p, const F& f) {
  const Pair window = p.geometry.window;
  if (window.h * window.w <= 4) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, 9>{});
}

template <class T, int V, class Place>
cudaError_t launch_largest_grad(cudaStream_t stream, const Pool& p, const Shape& y, const T* x,
                                const T* dy, T* dx, Place* places) {
  const cudaError_t status = with_window(p, [&]<int N>(std::integral_constant<int, N>) {
    const Deal deal(y.n, y.h, y.w, y.c / V);
    return launch_packs(stream, deal, find_largest<T, V, N, Place>, Windows(p, y), deal, x, places);
  });
  if (status != cudaSuccess) return status;
  if constexpr (std::is_same_v<Place, std::uint8_t>)
    if (in_squares(p)) {
      const Deal deal(p.x.n, (p.x.h + 1) / 2, (p.x.w + 1) / 2, p.x.c / V);
      return launch_packs(stream, deal, gather_largest_in_squares<T, V>, Windows(p, y), deal,
                          places, dy, dx);
    }
  const Deal deal(p.x.n, p.x.h, p.x.w, p.x.c / V);
  return launch_packs(stream, deal, gather_largest<T, V, Place>, Windows(p, y), deal, places, dy,
                      dx);
}

}  // namespace

cudaError_t pool(cudaStream_t stream, const Pool& p, const void* x, void* y) {
  const Shape y_shape = p.geometry.output(p.x);
  if (!fits(p, y_shape)) return cudaErrorInvalidValue;
  return with_elements(p.dtype, [&]<class T>(T) {
    return with_packs<T>(p.x.c, aligned(x, y), [&]<int V>(std::integral_constant<int, V>) {
      return with_window(p, [&]<int N>(std::integral_constant<int, N>) {
        const bool largest = p.geometry.kind == PoolGeometry::Kind::max;
        const Deal deal(y_shape.n, y_shape.h, y_shape.w, y_shape.c / V);
        return launch_packs(stream, deal, largest ? take_largest<T, V, N> : take_average<T, V, N>,
                            Windows(p, y_shape), deal, static_cast<const T*>(x),
                            static_cast<T*>(y));
      });
    });
  });
}

std::size_t pool_workspace(const Pool& p) {
  if (p.geometry.kind != PoolGeometry::Kind::max) return 0;
  return std::size_t(p.geometry.output(p.x).size()) * (small(p) ? 1 : sizeof(std::int32_t));
}

cudaError_t pool_grad(cudaStream_t stream, const Pool& p, const void* x, const void* dy, void* dx,
                      void* workspace) {
  const Shape y = p.geometry.output(p.x);
  if (!fits(p, y)) return cudaErrorInvalidValue;
  return with_elements(p.dtype, [&]<class T>(T) {
    const auto *const values = static_cast<const T*>(x), *const from = static_cast<const T*>(dy);
    auto* const to = static_cast<T*>(dx);
    const bool largest = p.geometry.kind == PoolGeometry::Kind::max;
    if (largest && !small(p))
      return launch_largest_grad<T, 1>(stream, p, y, values, from, to,
                                       static_cast<std::int32_t*>(workspace));
    const bool packs = aligned(dy, dx) && (!largest || aligned(x, workspace));
    return with_packs<T>(p.x.c, packs, [&]<int V>(std::integral_constant<int, V>) {
      if (largest)
        return launch_largest_grad<T, V>(stream, p, y, values, from, to,
                                         static_cast<std::uint8_t*>(workspace));
      const Deal deal(p.x.n, p.x.h, p.x.w, p.x.c / V);
      return launch_packs(stream, deal, gather_average<T, V>, Windows(p, y), deal, from, to);
    });
  });
}

}  // namespace lamina::cuda
