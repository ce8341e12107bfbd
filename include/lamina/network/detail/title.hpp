// How errors name a layer.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

namespace lamina::detail {

/// "conv1 (Conv2D)"
inline std::string title(const Network::Vertex& v) {
  return text(v.name, " (", v.layer->type(), ')');
}
inline std::string title(const Step& s) { return text(s.name, " (", s.layer->type(), ')'); }

}  // namespace lamina::detail
