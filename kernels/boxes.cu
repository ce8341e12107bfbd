// Boxes: each element's place in both blocks.
#include "boxes.hpp"
#include "elements.hpp"
#include "places.hpp"

namespace lamina::cuda {

namespace {

/// Dealt out as rows of all channels.
template <class T>
__global__ void move_elements(BoxCopy c, Deal deal, Divisor height) {
  const auto* const from = static_cast<const T*>(c.from);
  auto* const to = static_cast<T*>(c.to);
  const Box& box = c.box;
  each_pack<1>(deal, [&](int sample, int row, int column, int) {
    const int image = height.quotient(row);
    const std::int64_t n = sample + box.n.begin, channel = image + box.c.begin;
    const std::int64_t h = row - image * height.by() + box.h.begin, w = column + box.w.begin;
    T& there = to[c.to_block.offset(n, channel, h, w)];
    const T value = from ? from[c.from_block.offset(n, channel, h, w)] : narrow<T>(0.0);
    there = from && c.add ? narrow<T>(widen(there) + widen(value)) : value;
  });
}

}  // namespace

cudaError_t copy_box(cudaStream_t stream, const BoxCopy& c) {
  const Box& b = c.box;
  if (b.size() == 0) return cudaSuccess;
  if (!Deal::fits(b.c.size * b.h.size * b.w.size)) return cudaErrorInvalidValue;
  const bool labels = c.dtype == DType::i32 && !c.add;  // four bytes, like others
  return with_elements(labels ? DType::f32 : c.dtype, [&]<class T>(T) {
    const Deal deal(b.n.size, b.c.size * b.h.size, b.w.size, 1);
    return launch_packs(stream, deal, move_elements<T>, c, deal, Divisor(b.h.size));
  });
}

}  // namespace lamina::cuda
