// What must be so before an update, or a file, takes the values of a placed network.
#pragma once

#include <lamina/network/placed.hpp>

#include <cstdint>
#include <string>

namespace lamina::detail {

/// Throws, on all ranks the same Error, where a parameter is not finite on one of them, or where it
/// has other values on ranks that hold the same block of it. Collective.
void check_saved(const PlacedNetwork&, const std::string& path, std::int64_t step);

/// After the first forward and backward: throws, on all ranks the same Error, where parameters have
/// other values on ranks that hold the same block of them, or where ranks found another loss.
/// Nothing where the stream is silent. Collective.
void check_ranks(const PlacedNetwork&, Stream&);

}  // namespace lamina::detail
