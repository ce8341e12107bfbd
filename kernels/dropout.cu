// Dropout: each element's number in the whole tensor tells whether it stays.
#include "dropout.hpp"
#include "elements.hpp"
#include "places.hpp"

#include <lamina/kernels/dropout_mask.hpp>

namespace lamina::cuda {

namespace {

template <class T, int V>
__global__ void apply_mask(const StepValues* now, double rate, std::int32_t layer, Shape whole,
                           Box box, Deal deal, const T* x, T* y) {
  const DropoutMask mask(rate, *now, layer, whole.size());
  const auto scale = Wide<T>(1 / (1 - rate));
  const Box all = Box::of(whole);
  each_pack<V>(deal, [&](std::int64_t n, int h, int w, int c) {
    const std::int64_t i = ((n * box.h.size + h) * box.w.size + w) * box.c.size + c;
    const Pack<T, V> from = load<V>(x + i);
    const std::int64_t at =
        all.offset(box.n.begin + n, box.c.begin + c, box.h.begin + h, box.w.begin + w);
    Wide<T> values[V] = {};
    for (int v = 0; v < V; ++v)
      if (mask.keeps(std::uint64_t(at + v * whole.h * whole.w))) values[v] = scale * from.wide(v);
    store<V>(y + i, Pack<T, V>(values));
  });
}

}  // namespace

cudaError_t drop_out(cudaStream_t stream, const Dropout& d, const StepValues* now,
                     std::int32_t layer, const void* x, void* y) {
  const Box& b = d.box;
  if (b.size() == 0) return cudaSuccess;
  if (!Deal::fits(b.c.size * b.h.size * b.w.size)) return cudaErrorInvalidValue;
  return with_elements(d.dtype, [&]<class T>(T) {
    return with_packs<T>(b.c.size, aligned(x, y), [&]<int V>(std::integral_constant<int, V>) {
      const Deal deal(b.n.size, b.h.size, b.w.size, b.c.size / V);
      return launch_packs(stream, deal, apply_mask<T, V>, now, d.rate, layer, d.whole, b, deal,
                          static_cast<const T*>(x), static_cast<T*>(y));
    });
  });
}

}  // namespace lamina::cuda
