// A Machine as JSON: what the cache keeps and what profiles embed.
#pragma once

#include "base/json_part.hpp"

#include <lamina/profile/machine.hpp>

namespace lamina::detail {

/// Every member under its own name; rates as {"alone", "together"}, in FLOP/s or bytes/s.
nlohmann::ordered_json machine_to_json(const Machine& machine);

/// The same back. Throws Error, which names the place, where something is missing, of another type,
/// or out of range.
Machine machine_from_json(const JsonPart& json);

}  // namespace lamina::detail
