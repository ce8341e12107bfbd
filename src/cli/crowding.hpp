// Crowding: more threads on a host than it has processors for them.
#pragma once

#include <lamina/comm/world.hpp>

#include <string>

namespace lamina::cli {

/// Two `#` lines for each host whose ranks have more threads than processors to run on; nothing
/// where each thread has one. Collective.
std::string crowding(const World& world);

}  // namespace lamina::cli
