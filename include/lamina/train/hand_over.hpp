// hand_over: a training goes on in a network that is placed otherwise.
#pragma once

#include <lamina/comm/communicator.hpp>

namespace lamina {

class PlacedNetwork;

/// Gives parameters, running statistics and the optimizer's states of `before` to `after`, the same
/// network, placed on other ranks or split otherwise: each rank gets the blocks that it does not
/// have, in equal parts from those that do. Of running statistics that ranks have of their own, all
/// get the mean where there are more or fewer of them than before. States that ranks keep in parts
/// (a sharded optimizer) are put together first, by those that share them.
/// `before` may have ended (PlacedNetwork::end); it is null on a rank that was not there, as is
/// `after` on one that is no more. Rank 0 has both. Returns how many bytes ranks sent to each
/// other, in all. Collective over `ranks`, which are all of them; throws Error, on all, where
/// `after` has a tensor that `before` has not.
double hand_over(const PlacedNetwork* before, PlacedNetwork* after, const Communicator& ranks);

}  // namespace lamina
