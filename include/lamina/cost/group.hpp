// Groups: the ranks that share a collective, as pure arithmetic.
#pragma once

#include <lamina/cost/split.hpp>

#include <vector>

namespace lamina {

/// The ranks that differ from the one at `place` in their place along `axes` and agree in all
/// others, by their number along `axes`.
std::vector<int> group(const Split& split, const Place& place, Axis axes);

}  // namespace lamina
