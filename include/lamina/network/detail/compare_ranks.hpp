// What ranks must agree on before a network is placed on them.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/step.hpp>

namespace lamina::detail {

/// Throws, on all ranks the same Error, where they have other networks or options than rank 0. Back
/// ends may differ.
void compare_ranks(const Network& network, const PlaceOptions& options);

/// Whether ranks name unlike back ends; of imagined ranks nobody knows. Collective.
bool unlike_backends(const Communicator& ranks, const std::string& name);

/// Throws, on all ranks the same Error, where their back ends are unlike and not all have `said` so
/// (PlaceOptions::unlike_backends), or where some have and some have not. Collective.
void check_said(const Communicator& ranks, const std::string& name, bool said);

/// Throws, on all ranks the same Error, where collectives of some go by way of the host and of
/// others do not. Collective.
void check_carrier(const Communicator& ranks, const MemorySpace& memory);

}  // namespace lamina::detail
