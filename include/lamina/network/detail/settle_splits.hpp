// How a network may be split: asked before it is placed.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

#include <vector>

namespace lamina::detail {

/// Throws Error, naming the layer, where the network cannot be split so over `ranks` ranks; without
/// any splits it is split by samples.
void settle_splits(const Network& network, std::int64_t batch, int ranks, bool training,
                   std::vector<Split>& splits);

}  // namespace lamina::detail
