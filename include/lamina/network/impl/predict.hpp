// How a network is placed on ranks that are not there.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/predict.hpp>

#include <utility>

namespace lamina {

LAMINA_INLINE std::vector<Memory> predict_memory(const Network& network,
                                                 const PlaceOptions& options, int ranks,
                                                 const UpdateRule& rule) {
  check(ranks > 0, "the number of ranks must be positive, got ", ranks);
  check(!options.parameters_of,
        "what a network takes with the parameters of another one is not predicted");
  constexpr double patience = 3600;  // seconds: many threads may share few cores
  std::vector<Memory> all(static_cast<std::size_t>(ranks));
  run_ranks(
      ranks,
      [&](World& world) {
        PlaceOptions mine = options;
        mine.backend = planning_backend(options.backend), mine.ranks = world;
        const PlacedNetwork placed(network, std::move(mine));
        Memory m = placed.memory();
        for (const NamedParameter& n : placed.parameters())
          m.optimizer += n.parameter->state_bytes(rule.states());
        all[std::size_t(world.rank())] = m;
      },
      patience);
  return all;
}

}  // namespace lamina
