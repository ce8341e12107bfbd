// Dropout: each element's number in the whole tensor tells whether it stays.
#include "dropout.hpp"
#include "elements.hpp"
#include "flat.hpp"

#include <lamina/kernels/dropout_mask.hpp>

namespace lamina::cuda {

namespace {

template <class T>
__global__ void apply_mask(const StepValues* now, double rate, std::int32_t layer, Shape whole,
                           Box box, const T* x, T* y) {
  const DropoutMask mask(rate, *now, layer, whole.size());
  const auto scale = Wide<T>(1 / (1 - rate));
  const Box all = Box::of(whole);
  each_element(box.size(), [&](std::int64_t i) {
    const std::int64_t c = i % box.c.size, pixel = i / box.c.size;
    const std::int64_t w = pixel % box.w.size, row = pixel / box.w.size;
    const std::int64_t h = row % box.h.size, n = row / box.h.size;
    const std::int64_t at =
        all.offset(box.n.begin + n, box.c.begin + c, box.h.begin + h, box.w.begin + w);
    y[i] = mask.keeps(std::uint64_t(at)) ? narrow<T>(scale * widen(x[i])) : narrow<T>(0.0);
  });
}

}  // namespace

cudaError_t drop_out(cudaStream_t stream, const Dropout& d, const StepValues* now,
                     std::int32_t layer, const void* x, void* y) {
  return with_elements(d.dtype, [&]<class T>(T) {
    return launch_flat(stream, d.box.size(), apply_mask<T>, now, d.rate, layer, d.whole, d.box,
                       static_cast<const T*>(x), static_cast<T*>(y));
  });
}

}  // namespace lamina::cuda
