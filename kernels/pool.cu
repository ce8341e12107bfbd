// Pooling: a thread for each pack of channels at a position. Neighbouring windows overlap, which
// the caches catch, so that memory is read once. The gradient of a maximum has two steps: where in
// each window the largest element is, a byte each, then what each element gets from the windows
// that cover it. Looking for the largest there would read x as often as windows have elements.
#include "divisor.hpp"
#include "elements.hpp"
#include "pool.hpp"

#include <limits>

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

/// How packs of channels at positions are dealt out: in parts of a sample, so that numbers within
/// one suffice.
struct Deal {
  Divisor width, packs, parts_each;
  int count;  ///< of packs in a sample
  std::int64_t parts;

  Deal(std::int64_t samples, std::int64_t h, std::int64_t w, std::int64_t packs_each)
      : width(w),
        packs(packs_each),
        parts_each((h * w * packs_each + most - 1) / most),
        count(int(h * w * packs_each)),
        parts((h * w * packs_each + most - 1) / most * samples) {}

  static constexpr int most = 256, warp = 32;
  /// As many as a part has packs.
  int threads() const { return (std::min(count, most) + warp - 1) / warp * warp; }
};

/// Calls f(sample, row, column, first channel) for what is this thread's. In one loop: stores in
/// loops in loops are not made of whole packs.
template <int V, class F>
__device__ void each_pack(const Deal& deal, const F& f) {
  for (unsigned part = blockIdx.x; part < unsigned(deal.parts); part += gridDim.x) {
    const int n = deal.parts_each.quotient(int(part));
    const int i = (int(part) - n * deal.parts_each.by()) * Deal::most + int(threadIdx.x);
    if (i >= deal.count) continue;
    const int at = deal.packs.quotient(i), row = deal.width.quotient(at);
    f(n, row, at - row * deal.width.by(), (i - at * deal.packs.by()) * V);
  }
}

/// Starts a kernel that does.
template <class Kernel, class... Arguments>
cudaError_t launch_packs(cudaStream_t stream, const Deal& deal, Kernel kernel,
                         Arguments... arguments) {
  if (deal.parts > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidValue;
  return launch(stream, dim3(unsigned(std::min(deal.parts, most_blocks))),
                dim3(unsigned(deal.threads())), kernel, arguments...);
}

/// Calls f(row, column, pack) for the elements of a window of a sample at x.
template <int V, class T, class F>
__device__ void each_element(const Windows& of, const T* x, int p, int q, const F& f) {
  const int left = of.w.first(q), right = of.w.last(q), bottom = of.h.last(p);
  for (int i = of.h.first(p); i < bottom; ++i) {
    const T* from = x + of.x_at(i, left);
    for (int j = left; j < right; ++j, from += of.channels) f(i, j, load<V>(from));
  }
}

/// The largest element of each window to y, and its number in the window, padding included, to
/// places; either may be null.
template <class T, int V, class Place>
__global__ void take_largest(Windows of, Deal deal, const T* x, T* y, Place* places) {
  using W = Wide<T>;
  each_pack<V>(deal, [&](std::int64_t n, int p, int q, int channel) {
    const int top = of.h.start(p), left = of.w.start(q);
    W best[V];
    int place[V];
    for (int v = 0; v < V; ++v) {
      best[v] = -std::numeric_limits<W>::infinity();
      place[v] = (of.h.first(p) - top) * of.w.window + of.w.first(q) - left;
    }
    each_element<V>(of, x + of.x_at(n) + channel, p, q, [&](int i, int j, const Pack<T, V>& pack) {
      const int here = (i - top) * of.w.window + j - left;
      for (int v = 0; v < V; ++v) {
        const W value = widen(pack[v]);
        const bool wins = value > best[v] || (value != value && best[v] == best[v]);
        best[v] = wins ? value : best[v], place[v] = wins ? here : place[v];
      }
    });
    Pack<T, V> to;
    Pack<Place, V> to_places;
    for (int v = 0; v < V; ++v) to.set(v, narrow<T>(best[v])), to_places.set(v, Place(place[v]));
    const std::int64_t at = of.y_at(n) + of.y_at(p, q) + channel;
    if (y) store<V>(y + at, to);
    if (places) store<V>(places + at, to_places);
  });
}

template <class T, int V>
__global__ void take_average(Windows of, Deal deal, const T* x, T* y) {
  each_pack<V>(deal, [&](std::int64_t n, int p, int q, int channel) {
    Wide<T> sums[V] = {};
    each_element<V>(of, x + of.x_at(n) + channel, p, q, [&](int, int, const Pack<T, V>& pack) {
      for (int v = 0; v < V; ++v) sums[v] += widen(pack[v]);
    });
    const auto share = of.share<Wide<T>>(p, q);
    Pack<T, V> to;
    for (int v = 0; v < V; ++v) to.set(v, narrow<T>(sums[v] * share));
    store<V>(y + of.y_at(n) + of.y_at(p, q) + channel, to);
  });
}

/// dx: the sum of what f(sums, i, j, p, q, where that is in y) adds for each element and each
/// window that covers it.
template <class T, int V, class F>
__device__ void gather(const Windows& of, const Deal& deal, T* dx, const F& f) {
  each_pack<V>(deal, [&](std::int64_t n, int i, int j, int channel) {
    Wide<T> sums[V] = {};
    const int bottom = of.h.last_over(i), left = of.w.first_over(j), right = of.w.last_over(j);
    for (int p = of.h.first_over(i); p < bottom; ++p)
      for (int q = left; q < right; ++q) f(sums, i, j, p, q, of.y_at(n) + of.y_at(p, q) + channel);
    Pack<T, V> to;
    for (int v = 0; v < V; ++v) to.set(v, narrow<T>(sums[v]));
    store<V>(dx + of.x_at(n) + of.x_at(i, j) + channel, to);
  });
}

template <class T, int V, class Place>
__global__ void gather_largest(Windows of, Deal deal, const Place* places, const T* dy, T* dx) {
  gather<T, V>(of, deal, dx, [&](Wide<T>(&sums)[V], int i, int j, int p, int q, std::int64_t at) {
    const int here = (i - of.h.start(p)) * of.w.window + j - of.w.start(q);
    const Pack<Place, V> place = load<V>(places + at);
    const Pack<T, V> from = load<V>(dy + at);
    for (int v = 0; v < V; ++v)
      if (int(place[v]) == here) sums[v] += widen(from[v]);
  });
}

template <class T, int V>
__global__ void gather_average(Windows of, Deal deal, const T* dy, T* dx) {
  gather<T, V>(of, deal, dx, [&](Wide<T>(&sums)[V], int, int, int p, int q, std::int64_t at) {
    const auto share = of.share<Wide<T>>(p, q);
    const Pack<T, V> from = load<V>(dy + at);
    for (int v = 0; v < V; ++v) sums[v] += widen(from[v]) * share;
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

/// x to y, or to places.
template <class T, int V, class Place>
cudaError_t launch_largest(cudaStream_t stream, const Pool& p, const Shape& y_shape, const T* x,
                           T* y, Place* places) {
  const Deal deal(y_shape.n, y_shape.h, y_shape.w, y_shape.c / V);
  return launch_packs(stream, deal, take_largest<T, V, Place>, Windows(p, y_shape), deal, x, y,
                      places);
}

template <class T, int V, class Place>
cudaError_t launch_largest_grad(cudaStream_t stream, const Pool& p, const Shape& y, const T* x,
                                const T* dy, T* dx, Place* places) {
  const cudaError_t status = launch_largest<T, V, Place>(stream, p, y, x, nullptr, places);
  if (status != cudaSuccess) return status;
  const Deal deal(p.x.n, p.x.h, p.x.w, p.x.c / V);
  return launch_packs(stream, deal, gather_largest<T, V, Place>, Windows(p, y), deal, places, dy,
                      dx);
}

}  // namespace

cudaError_t pool(cudaStream_t stream, const Pool& p, const void* x, void* y) {
  const Shape y_shape = p.geometry.output(p.x);
  if (!fits(p, y_shape)) return cudaErrorInvalidValue;
  return with_elements(p.dtype, [&]<class T>(T) {
    const auto* const from = static_cast<const T*>(x);
    auto* const to = static_cast<T*>(y);
    return with_packs<T>(p.x.c, aligned(x, y), [&]<int V>(std::integral_constant<int, V>) {
      if (p.geometry.kind == PoolGeometry::Kind::max)
        return launch_largest<T, V, std::uint8_t>(stream, p, y_shape, from, to, nullptr);
      const Deal deal(y_shape.n, y_shape.h, y_shape.w, y_shape.c / V);
      return launch_packs(stream, deal, take_average<T, V>, Windows(p, y_shape), deal, from, to);
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
