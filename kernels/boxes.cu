// Boxes: each element's place in both blocks.
#include "boxes.hpp"
#include "elements.hpp"
#include "flat.hpp"

namespace lamina::cuda {

namespace {

template <class T>
__global__ void move_elements(BoxCopy c) {
  const auto* const from = static_cast<const T*>(c.from);
  auto* const to = static_cast<T*>(c.to);
  const Box& box = c.box;
  each_element(box.size(), [&](std::int64_t i) {
    const std::int64_t w = i % box.w.size + box.w.begin, row = i / box.w.size;
    const std::int64_t h = row % box.h.size + box.h.begin, image = row / box.h.size;
    const std::int64_t channel = image % box.c.size + box.c.begin;
    const std::int64_t n = image / box.c.size + box.n.begin;
    T& there = to[c.to_block.offset(n, channel, h, w)];
    const T value = from ? from[c.from_block.offset(n, channel, h, w)] : narrow<T>(0.0);
    there = from && c.add ? narrow<T>(widen(there) + widen(value)) : value;
  });
}

}  // namespace

cudaError_t copy_box(cudaStream_t stream, const BoxCopy& c) {
  const bool labels = c.dtype == DType::i32 && !c.add;  // four bytes, like others
  return with_elements(labels ? DType::f32 : c.dtype, [&]<class T>(T) {
    return launch_flat(stream, c.box.size(), move_elements<T>, c);
  });
}

}  // namespace lamina::cuda
