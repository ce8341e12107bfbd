// Sums of buffers, element by element.
#include "comm/mpi_combine.hpp"

#include "base/target_clones.hpp"

namespace lamina::detail {
namespace {

template <class T>
[[gnu::always_inline]] inline void combine(ReduceOp op, void* to, const void* left,
                                           const void* right, std::size_t n) {
  T* out = static_cast<T*>(to);
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  if (op == ReduceOp::sum) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) out[i] = T(a[i] + b[i]);
  } else if (op == ReduceOp::max) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
  } else {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) out[i] = b[i] < a[i] ? b[i] : a[i];
  }
}

LAMINA_SIMD void combine_f32(ReduceOp op, void* to, const void* a, const void* b, std::size_t n) {
  combine<float>(op, to, a, b, n);
}
LAMINA_SIMD void combine_f64(ReduceOp op, void* to, const void* a, const void* b, std::size_t n) {
  combine<double>(op, to, a, b, n);
}
LAMINA_SIMD void combine_i32(ReduceOp op, void* to, const void* a, const void* b, std::size_t n) {
  combine<std::int32_t>(op, to, a, b, n);
}

}  // namespace

void combine(const Operation& op, void* out, const void* left, const void* right,
             std::size_t count) {
  switch (op.dtype) {
    case DType::f32:
      return combine_f32(op.reduce, out, left, right, count);
    case DType::f64:
      return combine_f64(op.reduce, out, left, right, count);
    case DType::i32:
      return combine_i32(op.reduce, out, left, right, count);
    case DType::bf16:
    case DType::f16:
      break;
  }
  refuse(op);
}

}  // namespace lamina::detail
