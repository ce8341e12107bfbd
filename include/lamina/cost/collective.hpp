// Collective: what ranks do together.
#pragma once

#include <cstdint>

namespace lamina {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  halo,  ///< one message out and one in: Communicator::exchange
  barrier,
};

/// A string with static storage: it may be kept as the `what` of a Span.
constexpr const char* name(Collective c) {
  constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                   "all_to_all", "halo",           "barrier"};
  return names[int(c)];
}

}  // namespace lamina
