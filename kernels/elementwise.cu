// Activations, sums and parts of rows.
#include "elements.hpp"
#include "elementwise.hpp"
#include "flat.hpp"
#include "rows.hpp"

#include <cmath>
#include <limits>

namespace lamina::cuda {

namespace {

template <class W>
struct Sigmoid {
  __device__ W value(W x) const { return 1 / (1 + std::exp(-x)); }
  __device__ W derivative(W y) const { return y * (1 - y); }
};
template <class W>
struct Tanh {
  __device__ W value(W x) const { return std::tanh(x); }
  __device__ W derivative(W y) const { return 1 - y * y; }
};

template <class T, int V, class F>
__global__ void apply(F f, std::int64_t count, const T* x, T* y) {
  each_element<V>(
      count, [&](std::int64_t i) { return load<V>(x + i); },
      [&](std::int64_t i, const Pack<T, V>& from) {
        Wide<T> values[V];
        for (int v = 0; v < V; ++v) values[v] = f.value(from.wide(v));
        store<V>(y + i, Pack<T, V>(values));
      });
}

template <class T, int V>
struct Two {
  Pack<T, V> a, b;
};

template <class T, int V, class F>
__global__ void apply_grad(F f, std::int64_t count, const T* y, const T* dy, T* dx) {
  each_element<V>(
      count,
      [&](std::int64_t i) {
        return Two<T, V>{load<V>(y + i), load<V>(dy + i)};
      },
      [&](std::int64_t i, const Two<T, V>& from) {
        Wide<T> values[V];
        for (int v = 0; v < V; ++v) values[v] = from.b.wide(v) * f.derivative(from.a.wide(v));
        store<V>(dx + i, Pack<T, V>(values));
      });
}

template <class T, int V>
__global__ void add_elements(std::int64_t count, const T* a, const T* b, T* y) {
  each_element<V>(
      count,
      [&](std::int64_t i) {
        return Two<T, V>{load<V>(a + i), load<V>(b + i)};
      },
      [&](std::int64_t i, const Two<T, V>& from) {
        Wide<T> values[V];
        for (int v = 0; v < V; ++v) values[v] = from.a.wide(v) + from.b.wide(v);
        store<V>(y + i, Pack<T, V>(values));
      });
}

template <class T, int V>
__global__ void copy_parts(std::int64_t rows, int width, const T* from, std::int64_t from_stride,
                           T* to, std::int64_t to_stride) {
  const int at = first_channel<V>();
  if (at >= width) return;
  const Rows own(1, 0);
  each_item<batch>(
      own.first, own.step, own.stride, rows,
      [&](std::int64_t row) { return load<V>(from + row * from_stride + at); },
      [&](std::int64_t row, const Pack<T, V>& part) { store<V>(to + row * to_stride + at, part); });
}

/// Calls f with what an activation makes of values, as Wide<T>.
template <class T, class F>
cudaError_t with_activation(const Activation& a, const F& f) {
  using W = Wide<T>;
  switch (a.kind) {
    case Activation::Kind::relu:
      return f(Rectifier<W>{W(0)});
    case Activation::Kind::leaky_relu:
      return f(Rectifier<W>{W(a.slope)});
    case Activation::Kind::sigmoid:
      return f(Sigmoid<W>{});
    case Activation::Kind::tanh:
      return f(Tanh<W>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t activate(cudaStream_t stream, const Activation& a, DType dtype, std::int64_t count,
                     const void* x, void* y) {
  return with_elements(dtype, [&]<class T>(T) {
    return with_packs<T>(count, aligned(x, y), [&]<int V>(std::integral_constant<int, V>) {
      return with_activation<T>(a, [&]<class F>(F f) {
        return launch_flat<V>(stream, count, apply<T, V, F>, f, count, static_cast<const T*>(x),
                              static_cast<T*>(y));
      });
    });
  });
}

cudaError_t activate_grad(cudaStream_t stream, const Activation& a, DType dtype, std::int64_t count,
                          const void* y, const void* dy, void* dx) {
  return with_elements(dtype, [&]<class T>(T) {
    return with_packs<T>(count, aligned(y, dy, dx), [&]<int V>(std::integral_constant<int, V>) {
      return with_activation<T>(a, [&]<class F>(F f) {
        return launch_flat<V>(stream, count, apply_grad<T, V, F>, f, count,
                              static_cast<const T*>(y), static_cast<const T*>(dy),
                              static_cast<T*>(dx));
      });
    });
  });
}

cudaError_t add(cudaStream_t stream, DType dtype, std::int64_t count, const void* a, const void* b,
                void* y) {
  return with_elements(dtype, [&]<class T>(T) {
    return with_packs<T>(count, aligned(a, b, y), [&]<int V>(std::integral_constant<int, V>) {
      return launch_flat<V>(stream, count, add_elements<T, V>, count, static_cast<const T*>(a),
                            static_cast<const T*>(b), static_cast<T*>(y));
    });
  });
}

cudaError_t copy_rows(cudaStream_t stream, DType dtype, std::int64_t rows, std::int64_t width,
                      const void* from, std::int64_t from_stride, void* to,
                      std::int64_t to_stride) {
  if (rows * width == 0) return cudaSuccess;
  if (width > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidValue;
  return with_elements(dtype, [&]<class T>(T) {
    const bool whole = from_stride % pack_of<T> == 0 && to_stride % pack_of<T> == 0;
    return with_packs<T>(
        width, whole && aligned(from, to), [&]<int V>(std::integral_constant<int, V>) {
          const Tiles tiles(rows, int(width), V);
          return launch(stream, tiles.grid, tiles.block, copy_parts<T, V>, rows, int(width),
                        static_cast<const T*>(from), from_stride, static_cast<T*>(to), to_stride);
        });
  });
}

}  // namespace lamina::cuda
