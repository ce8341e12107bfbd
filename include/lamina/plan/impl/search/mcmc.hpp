// mcmc: a chain of random changes.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina::detail::search {

/// A random change of one vertex after the other, kept with the chance
///   exp((now - then) n / (temperature now))
/// where it takes longer, for n vertices (Metropolis et al., 1953), as Jia, Zaharia and Aiken
/// search, "Beyond data and model parallelism for deep neural networks", SysML 2019.
LAMINA_INLINE void mcmc(Trials& trials, const SearchOptions& options) {
  if (options.seeded)
    exact(trials, options);
  else
    trials.seeds();
  trials.restart();
  std::vector<std::size_t> open;  // vertices that have several options
  for (std::size_t v = 0; v < trials.graph().size(); ++v)
    if (trials.graph().seconds[v].size() > 1) open.push_back(v);
  const double temperature =
      options.mcmc.temperature / double(std::max<std::size_t>(open.size(), 1));
  const Random random(options.seed, key_of("mcmc"));
  Selection now = trials.selection();
  Score score = trials.best();
  for (std::int64_t i = 0; i < options.mcmc.iterations && !open.empty(); ++i) {
    const Random::Block words = random.block(std::uint64_t(i));
    // A word w is an integer below n as n w / 2^32.
    const auto below = [](std::uint64_t n, std::uint32_t word) { return int(n * word >> 32); };
    const std::size_t v = open[std::size_t(below(open.size(), words[0]))];
    const int option = below(trials.graph().seconds[v].size() - 1, words[1]);
    const int before = std::exchange(now[v], option + (option >= now[v]));
    const Score then = trials.score(now);
    const double chance =
        then.fits() ? std::exp((score.seconds - then.seconds) / (temperature * score.seconds)) : 0;
    if (!(score < then) || Random::unit(words[2]) < chance)
      score = then;
    else
      now[v] = before;
    trials.record();
  }
  trials.least_memory();
}

}  // namespace lamina::detail::search
