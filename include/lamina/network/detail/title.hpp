// How errors name a layer.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace lamina::detail {

/// "conv1 (Conv2D)"
inline std::string title(const Network::Vertex& v) {
  return text(v.name, " (", v.layer->type(), ')');
}
inline std::string title(const Step& s) { return text(s.name, " (", s.layer->type(), ')'); }

/// Throws Error, of one line, unless a name can be sent and written among others, in lines.
inline void check_one_line(std::string_view what, std::string name) {
  const auto controls = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::none_of(name, controls)) return;
  std::ranges::replace_if(name, controls, '?');
  throw Error(text(what, " '", name, "': expected a name without control characters, here ?"));
}

}  // namespace lamina::detail
