// Where backward computes something.
#pragma once

#include <lamina/network/network.hpp>

#include <algorithm>
#include <vector>

namespace lamina::detail {

/// By vertex.
struct Gradients {
  std::vector<bool> needed = {};     ///< of y: the layer is trained, or one before it is
  std::vector<bool> of_inputs = {};  ///< of any x, so that the layer computes dx
};

inline Gradients gradients_of(const Network& network, std::int64_t batch, DType t) {
  Gradients g;
  for (const Network::Vertex& v : network.graph()) {
    g.of_inputs.push_back(std::ranges::any_of(
        v.inputs, [&](int input) { return bool(g.needed[std::size_t(input)]); }));
    g.needed.push_back(
        g.of_inputs.back() ||
        (v.layer && v.layer->cost(network.input_shapes(v, batch), {}, t).parameters > 0));
  }
  return g;
}

}  // namespace lamina::detail
