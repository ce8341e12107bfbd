// Wrapping: lines for a terminal that is only so wide.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lamina::detail {

/// Lines longer than `width` go on in the next one, after `indent`. Blanks within a line stay as
/// they are; a word that is longer than a line stays whole.
std::string wrap(std::string_view lines, std::size_t width, std::string_view indent);

}  // namespace lamina::detail
