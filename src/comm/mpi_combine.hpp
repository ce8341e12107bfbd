// Sums of buffers, element by element.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/comm/collective.hpp>

#include <cstddef>
#include <vector>

namespace lamina::detail {

/// bf16 and f16 are summed in f32, before they come here: a sum of two would be rounded each time.
[[noreturn]] inline void refuse(const Operation& op) {
  throw Error(text(op, ": expected sums in f32, f64 or i32"));
}

/// out = the sum (max, min) of `left` and `right`, each `count` elements. `out` may be one of them.
void combine(const Operation&, void* out, const void* left, const void* right, std::size_t count);

/// f32 as it travels (Operation::narrow): rounded to nearest, ties to even; and back, exactly.
void narrow(BF16* to, const float* from, std::size_t count);
void widen(float* to, const BF16* from, std::size_t count);
/// sum += what came so.
void add(float* sum, const BF16* term, std::size_t count);

/// All `targets`, of `count` elements, = the sum (max, min) of `sources`, in the order of
/// added_first(). The targets may be the sources.
void combine_all(const Operation&, const std::vector<const char*>& sources, std::size_t count,
                 const std::vector<char*>& targets);

}  // namespace lamina::detail
