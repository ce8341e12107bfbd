// How errors name a layer.
#pragma once

#include <lamina/network/network.hpp>

namespace lamina::detail {

/// "conv1 (Conv2D)"
inline std::string title(const Network::Vertex& v) {
  return text(v.name, " (", v.layer->type(), ')');
}

}  // namespace lamina::detail
