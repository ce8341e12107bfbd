// Elements of tensors as kernels see them: one by one, or as many at once as a thread loads best.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/dtype.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
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

/// V elements, side by side in memory. Small ones stay together in words until they are asked for:
/// each would take a register of its own.
template <class T, int V>
class alignas(V * sizeof(T)) Pack {
 public:
  Pack() = default;
  /// Rounded once each, to nearest.
  template <class W>
  __device__ explicit Pack(const W (&values)[V]) {
    if constexpr (std::is_same_v<W, float> && sizeof(T) == 2 && each == 2)
      for (int v = 0; v < V; v += 2) words_[v / 2] = narrow_two(T{}, values[v], values[v + 1]);
    else
      for (int v = 0; v < V; ++v) set(v, narrow<T>(values[v]));
  }

  __device__ T operator[](int v) const {
    if constexpr (each == 1)
      return words_[v];
    else
      return std::bit_cast<T>(Bits(words_[v / each] >> bits * (v % each)));
  }
  __device__ Wide<T> wide(int v) const {
    if constexpr (std::is_same_v<T, BF16> && each == 2)  // the upper half of a float
      return std::bit_cast<float>(v % 2 == 0 ? words_[v / 2] << 16 : words_[v / 2] & 0xFFFF0000);
    else
      return widen((*this)[v]);
  }
  /// Once for each, which is zero before.
  __device__ void set(int v, T value) {
    if constexpr (each == 1)
      words_[v] = value;
    else
      words_[v / each] |= std::uint32_t(std::bit_cast<Bits>(value)) << bits * (v % each);
  }

 private:
  static constexpr bool in_words = sizeof(T) < 4 && V * sizeof(T) >= 4;
  using Word = std::conditional_t<in_words, std::uint32_t, T>;
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>;
  static constexpr int each = sizeof(Word) / sizeof(T), bits = 8 * sizeof(T);
  Word words_[V / each] = {};
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

/// Items that a thread reads before it uses the first of them: memory is as fast as it can be only
/// where each thread waits for several loads at once.
constexpr int batch = 4;

/// Of the numbers first, first + step, ... below `end`, N at a time and then those from `stride`
/// further on: calls use(number, items) with an array of what read(number) and read() of those that
/// follow give. It has N items, or one of them where `end` is near.
template <int N, class Read, class Use>
__device__ void each_batch(std::int64_t first, std::int64_t step, std::int64_t stride,
                           std::int64_t end, const Read& read, const Use& use) {
  using Item = decltype(read(first));
  for (; first < end; first += stride) {
    if (first + (N - 1) * step < end) {
      Item items[N];
      LAMINA_UNROLL
      for (int k = 0; k < N; ++k) items[k] = read(first + k * step);
      use(first, items);
      continue;
    }
    for (std::int64_t i = first; i < end; i += step) {
      const Item items[1] = {read(i)};
      use(i, items);
    }
  }
}

/// Calls use(number, read(number)) for each of those, of which N are read before the first is used.
template <int N, class Read, class Use>
__device__ void each_item(std::int64_t first, std::int64_t step, std::int64_t stride,
                          std::int64_t end, const Read& read, const Use& use) {
  each_batch<N>(first, step, stride, end, read, [&](std::int64_t i, const auto& items) {
    LAMINA_UNROLL
    for (int k = 0; k < int(std::size(items)); ++k) use(i + k * step, items[k]);
  });
}

/// What an activation makes of values, and below() of gradients where it let none pass.
template <class W>
struct Rectifier {
  W slope = 1;

  __device__ W below(W v) const { return slope == W(0) ? W(0) : slope * v; }   // not 0 * infinity
  __device__ W value(W v) const { return v > W(0) || v != v ? v : below(v); }  // NaN stays NaN
  __device__ W derivative(W y) const { return y <= W(0) ? slope : W(1); }
};

/// Calls f with how many of so many elements in a row a thread has at once, as a type: a pack where
/// all begin where one may, else one.
template <class T, class F>
cudaError_t with_packs(std::int64_t count, bool aligned, const F& f) {
  constexpr int v = pack_of<T>;
  if (aligned && count % v == 0) return f(std::integral_constant<int, v>{});
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
