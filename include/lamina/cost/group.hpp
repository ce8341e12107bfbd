// Groups: the ranks that share a collective, as pure arithmetic.
#pragma once

#include <lamina/cost/split.hpp>

#include <vector>

namespace lamina {

/// The ranks that differ from the one at `place` in their place along `axes` and agree in all
/// others, by their number along `axes`.
std::vector<int> group(const Split& split, const Place& place, Axis axes);

/// The distance between neighbours in a group, by rank: the largest one where distances differ; 0
/// for one rank. The same for all groups along the same axes.
int stride(const std::vector<int>& ranks);

/// On how many nodes they lie, where each node has so many ranks, one node after the other. Throws
/// Error unless that is positive.
int nodes(const std::vector<int>& ranks, int ranks_per_node);

}  // namespace lamina
