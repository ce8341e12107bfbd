// Activations, sums and parts of rows.
#include "elements.hpp"
#include "elementwise.hpp"
#include "flat.hpp"

#include <cmath>

namespace lamina::cuda {

namespace {

template <class W>
__device__ W value(Activation::Kind kind, W slope, W x) {
  switch (kind) {
    case Activation::Kind::relu:
      return x <= 0 ? W(0) : x;  // NaN stays NaN
    case Activation::Kind::leaky_relu:
      return x <= 0 ? slope * x : x;
    case Activation::Kind::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::Kind::tanh:
      return std::tanh(x);
  }
  return x;
}

template <class W>
__device__ W derivative(Activation::Kind kind, W slope, W y) {
  switch (kind) {
    case Activation::Kind::relu:
      return y <= 0 ? W(0) : W(1);
    case Activation::Kind::leaky_relu:
      return y <= 0 ? slope : W(1);
    case Activation::Kind::sigmoid:
      return y * (1 - y);
    case Activation::Kind::tanh:
      return 1 - y * y;
  }
  return 1;
}

template <class T>
__global__ void apply(Activation::Kind kind, double slope, std::int64_t count, const T* x, T* y) {
  each_element(count,
               [&](std::int64_t i) { y[i] = narrow<T>(value(kind, Wide<T>(slope), widen(x[i]))); });
}

template <class T>
__global__ void apply_grad(Activation::Kind kind, double slope, std::int64_t count, const T* y,
                           const T* dy, T* dx) {
  each_element(count, [&](std::int64_t i) {
    dx[i] = narrow<T>(widen(dy[i]) * derivative(kind, Wide<T>(slope), widen(y[i])));
  });
}

template <class T>
__global__ void add_elements(std::int64_t count, const T* a, const T* b, T* y) {
  each_element(count, [&](std::int64_t i) { y[i] = narrow<T>(widen(a[i]) + widen(b[i])); });
}

template <class T>
__global__ void copy_parts(std::int64_t count, std::int64_t width, const T* from,
                           std::int64_t from_stride, T* to, std::int64_t to_stride) {
  each_element(count, [&](std::int64_t i) {
    const std::int64_t row = i / width, at = i % width;
    to[row * to_stride + at] = from[row * from_stride + at];
  });
}

}  // namespace

cudaError_t activate(cudaStream_t stream, const Activation& a, DType dtype, std::int64_t count,
                     const void* x, void* y) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_flat(stream, count, apply<T>, a.kind, a.slope, count, static_cast<const T*>(x),
                       static_cast<T*>(y));
  });
}

cudaError_t activate_grad(cudaStream_t stream, const Activation& a, DType dtype, std::int64_t count,
                          const void* y, const void* dy, void* dx) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_flat(stream, count, apply_grad<T>, a.kind, a.slope, count,
                       static_cast<const T*>(y), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

cudaError_t add(cudaStream_t stream, DType dtype, std::int64_t count, const void* a, const void* b,
                void* y) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_flat(stream, count, add_elements<T>, count, static_cast<const T*>(a),
                       static_cast<const T*>(b), static_cast<T*>(y));
  });
}

cudaError_t copy_rows(cudaStream_t stream, DType dtype, std::int64_t rows, std::int64_t width,
                      const void* from, std::int64_t from_stride, void* to,
                      std::int64_t to_stride) {
  return with_elements(dtype, [&]<class T>(T) {
    return launch_flat(stream, rows * width, copy_parts<T>, rows * width, width,
                       static_cast<const T*>(from), from_stride, static_cast<T*>(to), to_stride);
  });
}

}  // namespace lamina::cuda
