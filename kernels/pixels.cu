// Bytes of images, each looked up.
#include "divisor.hpp"
#include "elements.hpp"
#include "flat.hpp"
#include "pixels.hpp"

#include <algorithm>
#include <limits>

namespace lamina::cuda {

namespace {

template <class T, int V>
__global__ void look_up(PixelValues values, std::int64_t packs, Divisor packs_each,
                        Divisor channels, const std::uint8_t* bytes, T* to) {
  constexpr int count = PixelValues::channels * 256;
  __shared__ T rounded[count];
  for (int i = int(threadIdx.x); i < count; i += flat_threads)
    rounded[i] = narrow<T>(Wide<T>(values.of[i]));
  __syncthreads();
  each_element<1>(
      packs, [&](std::int64_t i) { return load<V>(bytes + i * V); },
      [&](std::int64_t i, const Pack<std::uint8_t, V>& from) {
        const int plane = packs_each.quotient(int(i));
        const int channel = plane - channels.quotient(plane) * channels.by();
        const T* const of = rounded + 256 * std::min(channel, PixelValues::channels - 1);
        Pack<T, V> pack;
        for (int v = 0; v < V; ++v) pack.set(v, of[from[v]]);
        store<V>(to + i * V, pack);
      });
}

}  // namespace

cudaError_t convert_pixels(cudaStream_t stream, DType type, std::int64_t planes, std::int64_t plane,
                           std::int64_t channels, const PixelValues& values,
                           const std::uint8_t* bytes, void* to) {
  if (planes * plane == 0) return cudaSuccess;
  if (planes * plane > std::numeric_limits<int>::max()) return cudaErrorInvalidValue;
  return with_elements(type, [&](auto zero) {
    using T = decltype(zero);
    return with_packs<T>(plane, aligned(bytes, static_cast<const T*>(to)), [&](auto v) {
      constexpr int V = decltype(v)::value;
      const std::int64_t packs = planes * plane / V;
      return launch_flat<1>(stream, packs, look_up<T, V>, values, packs, Divisor(plane / V),
                            Divisor(channels), bytes, static_cast<T*>(to));
    });
  });
}

}  // namespace lamina::cuda
