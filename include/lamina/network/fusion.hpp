// Fusion: which layers of a network are absorbed by the kernels of others, as data.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

#include <vector>

namespace lamina {

/// A layer that is absorbed has no kernel of its own in forward: that of the layer before it ends
/// in an epilogue, which does its work while the values are at hand.
struct Fusion {
  /// Of a vertex of the graph.
  struct Role {
    int absorbed_by = -1;    ///< the vertex whose kernel does its work; -1 = none
    Epilogue epilogue = {};  ///< of its kernel
    int added = -1;          ///< the vertex whose y that adds; -1 = none
  };
  std::vector<Role> vertices;

  const Role& of(int vertex) const { return vertices[std::size_t(vertex)]; }
};

/// Of `options`: the back end and the ranks, the batch, what is split how and recomputed; both have
/// an entry for each vertex, or none. A layer absorbs the one behind it, and that the next, where
///
/// - nobody else reads what it makes, which is in no memory then;
/// - ranks hold the same blocks of both, and they are both recomputed or both kept;
/// - the other operand of a sum of two is made before it;
/// - the back end is the faster for it (Backend::fuses).
///
/// In inference weights absorb a batch norm behind them, whatever the back end. Collective where
/// ranks compute with unlike ones.
Fusion plan_fusion(const Network& network, const PlaceOptions& options);

}  // namespace lamina
