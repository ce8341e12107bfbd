// Sums of buffers, element by element.
#pragma once

#include <lamina/comm/collective.hpp>

namespace lamina::detail {

/// out = the sum (max, min) of `left` and `right`, each `count` elements. `out` may be one of them.
void combine(const Operation&, void* out, const void* left, const void* right, std::size_t count);

}  // namespace lamina::detail
