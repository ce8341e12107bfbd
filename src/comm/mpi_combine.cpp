// Sums of buffers, element by element.
#include "comm/mpi_combine.hpp"

#include "base/target_clones.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

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

/// The sum (max, min) of `sources` in the order of added_first(), block by block, so that what is
/// between stays in the nearest cache. What it is written to may be one of them: a left half is
/// summed elsewhere, before the right one is.
class Combined {
 public:
  Combined(const Operation& op, const std::vector<const char*>& sources)
      : op_(op), sources_(sources), block_(sizeof sums_[0] / size_of(op.dtype)) {}

  /// Elements at a time.
  std::size_t block() const { return block_; }
  /// `n` of them, `at` bytes from the start, to `out`, or where they are already.
  const char* of(std::size_t at, std::size_t n, char* out) {
    return add_up(0, sources_.size(), at, n, out, 0);
  }

 private:
  const char* add_up(std::size_t first, std::size_t count, std::size_t at, std::size_t n, char* out,
                     std::size_t depth) {
    if (count == 1) return sources_[first] + at;
    const std::size_t left = added_first(count);
    const char* const a = add_up(first, left, at, n, sums_[depth], depth + 1);
    const char* const b = add_up(first + left, count - left, at, n, out, depth + 1);
    detail::combine(op_, out, a, b, n);
    return out;
  }

  const Operation& op_;
  const std::vector<const char*>& sources_;
  std::size_t block_;
  alignas(64) char sums_[32][4096];  // more than 2 log2 of the ranks that a node may have
};

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

LAMINA_SIMD void narrow(BF16* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40;
    to[i].bits = std::uint16_t((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : nearest);
  }
}

LAMINA_SIMD void widen(float* to, const BF16* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<float>(std::uint32_t(from[i].bits) << 16);
}

LAMINA_SIMD void add(float* sum, const BF16* term, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    sum[i] += std::bit_cast<float>(std::uint32_t(term[i].bits) << 16);
}

void combine_all(const Operation& op, const std::vector<const char*>& sources, std::size_t count,
                 const std::vector<char*>& targets) {
  Combined combined(op, sources);
  const std::size_t element = size_of(op.dtype);
  for (std::size_t begin = 0; begin < count; begin += combined.block()) {
    const std::size_t n = std::min(combined.block(), count - begin), at = begin * element;
    const char* const sum = combined.of(at, n, targets[0] + at);
    for (char* const target : targets)
      if (target + at != sum) std::memcpy(target + at, sum, n * element);
  }
}

}  // namespace lamina::detail
