// How the ranks of a host share its processors.
#pragma once

#include <lamina/comm/world.hpp>

#include <string>

namespace lamina::cli {

/// Sets how many threads the kernels of this rank have: `threads`, or for 0 its share of the
/// processors that it may run on as other ranks of its host do. Where all of these have as many,
/// and together one for each processor, they are bound: see bind_threads(). Collective, but for a
/// rank that came late.
void take_processors(int threads, const World& world);

/// Two `#` lines for each host whose ranks have more threads than processors to run on, or than a
/// control group lets them have; nothing where each thread has one. Collective.
std::string crowding(const World& world);

}  // namespace lamina::cli
