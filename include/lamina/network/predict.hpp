// What a network would take on ranks that are not there, for whoever plans.
#pragma once

#include <lamina/cost/update_rule.hpp>
#include <lamina/network/placed.hpp>

#include <vector>

namespace lamina {

/// Of each of `ranks` ranks, the memory that the network would take there if it was placed so, with
/// the states of an optimizer of that rule. It is placed by the code that places it on real ranks,
/// with kernels of the reference back end, all values plain; but no buffers are allocated. Other
/// back ends differ in `workspace`, which is the kernels' own business, and where they pad their
/// layouts. Ranks are threads of this process meanwhile, and need no MPI: any rank may ask by
/// itself. They meet as often as real ones do while a network is placed, so that it takes
/// milliseconds for one rank, but seconds for a deep network on dozens of them.
///
/// Of `options` the ranks do not count, and of the back end only what it fuses, if there is one.
/// Throws Error where the network cannot be placed so, or is to have the parameters of another one.
std::vector<Memory> predict_memory(const Network& network, const PlaceOptions& options, int ranks,
                                   const UpdateRule& rule = {});

}  // namespace lamina
