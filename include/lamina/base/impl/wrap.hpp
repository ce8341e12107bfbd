// Wrapping: lines for a terminal that is only so wide.
#pragma once

#include <lamina/base/detail/wrap.hpp>
#include <lamina/base/inline.hpp>

#include <algorithm>

namespace lamina::detail {

LAMINA_INLINE std::string wrap(std::string_view lines, std::size_t width, std::string_view indent) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t at = 0; at < lines.size();) {
    // A word, with the blanks before it.
    const std::size_t begin = std::min(lines.find_first_not_of(' ', at), lines.size());
    const std::size_t end = std::min(lines.find_first_of(" \n", begin), lines.size());
    std::size_t from = at;
    if (column > indent.size() && column + end - at > width) {
      out.append("\n").append(indent);
      column = indent.size(), from = begin;
    }
    out.append(lines.substr(from, end - from));
    column += end - from, at = end;
    if (at < lines.size() && lines[at] == '\n') out += '\n', column = 0, ++at;
  }
  return out;
}

}  // namespace lamina::detail
