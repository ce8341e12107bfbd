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

/// All `targets`, of `count` elements, = the sum (max, min) of `sources`, in the order of
/// added_first(). The targets may be the sources.
void combine_all(const Operation&, const std::vector<const char*>& sources, std::size_t count,
                 const std::vector<char*>& targets);

}  // namespace lamina::detail
