// swarm: particles that fly through weights of options, drawn to the best that they and others have
// seen.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

namespace detail::search {

/// Particle swarm (Kennedy and Eberhart, 1995; weights of inertia by Shi and Eberhart, 1998). A
/// particle has a real number for each option of each vertex, and its selection is the option with
/// the largest. So no order of the options is assumed, which a position between two would need.
class Swarm {
 public:
  Swarm(Trials& trials, const SwarmOptions& options, std::uint64_t seed)
      : trials_(trials), options_(options), seed_(seed) {
    for (const auto& seconds : trials.graph().seconds) {
      first_.push_back(axes_);
      axes_ += seconds.size();
    }
  }

  /// The first ones begin at `starts`, as many as there are; the others by chance.
  void run(const std::vector<Selection>& starts) {
    particles_.resize(std::size_t(options_.particles));
    for (std::size_t p = 0; p < particles_.size(); ++p)
      begin(particles_[p], int(p), p < starts.size() ? &starts[p] : nullptr);
    follow_best();
    trials_.record();
    for (int i = 1; i <= options_.iterations; ++i) {
      for (std::size_t p = 0; p < particles_.size(); ++p) move(particles_[p], i, int(p));
      follow_best();
      trials_.record();
    }
  }

 private:
  struct Particle {
    std::vector<float> x, velocity, best = {};
    Score score = {};  // of `best`
  };

  Random stream(int iteration, int particle) const {
    return Random(seed_, std::uint64_t(iteration), std::uint64_t(particle));
  }
  /// Two words of the stream of a particle in an iteration are for each axis.
  template <class Use>
  void draw(int iteration, int particle, Use&& use) const {
    const Random random = stream(iteration, particle);
    for (std::size_t i = 0; i < axes_; i += 2) {
      const Random::Block words = random.block(i / 2);
      use(i, Random::unit(words[0]), Random::unit(words[1]));
      if (i + 1 < axes_) use(i + 1, Random::unit(words[2]), Random::unit(words[3]));
    }
  }

  /// At `start`, or by chance.
  void begin(Particle& p, int number, const Selection* start) {
    p = {std::vector<float>(axes_), std::vector<float>(axes_)};
    draw(0, number, [&](std::size_t i, float a, float b) { p.x[i] = a, p.velocity[i] = b - 0.5f; });
    if (start) {
      std::ranges::fill(p.x, 0.0f);
      for (std::size_t v = 0; v < start->size(); ++v) p.x[first_[v] + std::size_t((*start)[v])] = 1;
    }
    p.best = p.x;
    p.score = trials_.score(chosen(p.x));
  }

  /// v = inertia v + cognitive r (best - x) + social r' (best of all - x);  x = x + v.
  void move(Particle& p, int iteration, int number) {
    const auto inertia = float(options_.inertia);
    const auto cognitive = float(options_.cognitive), social = float(options_.social);
    draw(iteration, number, [&](std::size_t i, float a, float b) {
      const float v = inertia * p.velocity[i] + cognitive * a * (p.best[i] - p.x[i]) +
                      social * b * (best_[i] - p.x[i]);
      p.velocity[i] = std::clamp(v, -1.0f, 1.0f);  // one step is at most from option to option
      p.x[i] += p.velocity[i];
    });
    stray(p.x, stream(iteration, number).block(axes_));  // one that draw() leaves out
    const Score score = trials_.score(chosen(p.x));
    if (score < p.score) p.score = score, p.best = p.x;
  }

  /// By chance, the weights of the largest and of another option of a vertex change places.
  void stray(std::vector<float>& x, const Random::Block& words) const {
    if (first_.empty() || Random::unit(words[0]) >= options_.craziness) return;
    const auto below = [](std::uint64_t n, std::uint32_t word) {
      return std::size_t(n * word >> 32);
    };
    const std::size_t v = below(first_.size(), words[1]);
    const std::size_t n = trials_.graph().seconds[v].size();
    const auto begin = x.begin() + std::ptrdiff_t(first_[v]);
    std::iter_swap(std::max_element(begin, begin + std::ptrdiff_t(n)),
                   begin + std::ptrdiff_t(below(n, words[2])));
  }

  void follow_best() {
    for (const Particle& p : particles_)
      if (best_.empty() || p.score < score_) score_ = p.score, best_ = p.best;
  }

  const Selection& chosen(const std::vector<float>& x) {
    selection_.clear();
    auto at = x.begin();
    for (const auto& seconds : trials_.graph().seconds) {
      const auto end = at + std::ptrdiff_t(seconds.size());
      selection_.push_back(int(std::max_element(at, end) - at));
      at = end;
    }
    return selection_;
  }

  Trials& trials_;
  const SwarmOptions& options_;
  std::uint64_t seed_;
  std::vector<std::size_t> first_;  // axis of each vertex
  std::size_t axes_ = 0;
  std::vector<Particle> particles_;
  std::vector<float> best_;  // of all
  Score score_ = {};         // of `best_`
  Selection selection_;      // what is tried
};

LAMINA_INLINE void swarm(Trials& trials, const SearchOptions& options) {
  std::vector<Selection> starts;
  if (options.seeded) {
    exact(trials, options);
    trials.restart();
    starts = {trials.selection(), trials.problem().simple};
    starts.insert(starts.end(), trials.problem().seeds.begin(), trials.problem().seeds.end());
  }
  Swarm(trials, options.swarm, options.seed).run(starts);
  trials.least_memory();
}

}  // namespace detail::search

}  // namespace lamina
