// What ranks must agree on before a network is placed on them.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

namespace lamina::detail {

/// Throws, on all ranks the same Error, where they have other networks or options than rank 0.
void compare_ranks(const Network& network, const PlaceOptions& options);

}  // namespace lamina::detail
