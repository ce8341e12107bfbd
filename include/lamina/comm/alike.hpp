// What ranks must agree on before they work together: each states facts, and unlike ones are named.
#pragma once

#include <lamina/comm/communicator.hpp>

#include <functional>
#include <string>
#include <vector>

namespace lamina {

/// One thing that must be the same on all ranks: {"--seed", "1"}.
struct Fact {
  std::string name, value;
};

/// Where ranks state other facts than rank 0, throws the same Error on all of them, which says what
/// differs and on which rank: "--seed is 1 on rank 0, but 2 on rank 1". Collective; costs one small
/// message where all is well.
void check_alike(const Communicator& ranks, const std::vector<Fact>& mine);

/// Runs `work` on rank 0; what it throws there, all ranks throw. Returns its text on all of them.
/// Collective.
std::string on_first(const Communicator& ranks, const std::function<std::string()>& work);

}  // namespace lamina
