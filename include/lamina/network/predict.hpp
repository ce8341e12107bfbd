// What a network would take on ranks that are not there, for whoever plans.
#pragma once

#include <lamina/cost/update_rule.hpp>
#include <lamina/network/placed.hpp>

#include <vector>

namespace lamina {

/// The network as it would be placed on rank `rank` of `ranks`: by the code that places it on real
/// ones, but alone and in this thread, with kernels of the reference back end, all values plain,
/// and nothing allocated. It never runs: allocate() throws Error. Its steps, costs, buckets and
/// memory are those of a real one; of what other ranks hold of parameters it knows rank 0's only
/// (WholeParameter::blocks and variant say nothing of the others).
///
/// Of `options` the ranks do not count, and of the back end only what it fuses, if there is one.
/// Throws Error where the network cannot be placed so, or is to have the parameters of another one.
PlacedNetwork imagine(const Network& network, const PlaceOptions& options, int rank, int ranks);

/// Of each of `ranks` ranks, the memory that the network would take there if it was placed so, with
/// the states of an optimizer of that rule. Other back ends than the reference differ in
/// `workspace`, which is the kernels' own business, and where they pad their layouts. Options and
/// errors as above.
std::vector<Memory> predict_memory(const Network& network, const PlaceOptions& options, int ranks,
                                   const UpdateRule& rule = {});

}  // namespace lamina
