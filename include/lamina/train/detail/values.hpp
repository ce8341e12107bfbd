// What must be so before an update, or a file, takes the values of a placed network.
#pragma once

#include <lamina/network/placed.hpp>

#include <cstdint>
#include <string>

namespace lamina::detail {

/// Throws, on all ranks the same Error, where a parameter is not finite on one of them, or where it
/// has other values on ranks that hold the same block of it. Collective.
void check_saved(const PlacedNetwork&, const std::string& path, std::int64_t step);

// Before the first update. Collective; they do nothing where the stream is silent.
/// Throws, on all ranks the same Error, where a parameter has other values on ranks that hold the
/// same block of it.
void check_weights(const PlacedNetwork&, Stream&);
/// After forward: the same where ranks that share the loss found other values.
void check_loss(const PlacedNetwork&, Stream&);

}  // namespace lamina::detail
