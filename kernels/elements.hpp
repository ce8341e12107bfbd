// Elements of tensors as kernels see them: one by one, or as many at once as a thread loads best.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace lamina::cuda {

template <class T>
__device__ Wide<T> widen(T v) {
  return static_cast<Wide<T>>(v);
}
/// Rounded once, to nearest.
template <class T, class W>
__device__ T narrow(W v) {
  return T(v);
}

/// V elements, side by side in memory.
template <class T, int V>
struct alignas(V * sizeof(T)) Pack {
  T v[V];
};
template <int V, class T>
__device__ Pack<T, V> load(const T* from) {
  return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <int V, class T>
__device__ void store(T* to, const Pack<T, V>& pack) {
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

/// Of 16 bytes, which is what a thread loads at once.
template <class T>
constexpr int pack_of = 16 / sizeof(T);

/// Whether all of these, where present, begin where a pack may.
template <class... T>
bool aligned(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// What an activation makes of values, and below() of gradients where it let none pass.
template <class W>
struct Rectifier {
  W slope = 1;

  __device__ W below(W v) const { return slope == W(0) ? W(0) : slope * v; }   // not 0 * infinity
  __device__ W value(W v) const { return v > W(0) || v != v ? v : below(v); }  // NaN stays NaN
};

/// Calls f with how many of so many channels a thread has at once, as a type: a pack where all
/// begin where one may, else one.
template <class T, class F>
cudaError_t with_packs(std::int64_t channels, bool aligned, const F& f) {
  constexpr int v = pack_of<T>;
  if (aligned && channels % v == 0) return f(std::integral_constant<int, v>{});
  return f(std::integral_constant<int, 1>{});
}

/// Calls f with a zero of that type, as visit() does on the host.
template <class F>
cudaError_t with_elements(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(BF16{});
    case DType::f16:
      return f(F16{});
    case DType::i32:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lamina::cuda
