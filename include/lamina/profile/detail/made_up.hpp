// What a network is fed with that is measured.
#pragma once

#include <lamina/network/placed.hpp>

namespace lamina::detail {

/// Fills this rank's x with made-up samples, and makes its part of the targets: classes in turn, or
/// zeros. Throws Error if the network does not end in a loss.
Tensor fill_made_up(const PlacedNetwork& network);

}  // namespace lamina::detail
