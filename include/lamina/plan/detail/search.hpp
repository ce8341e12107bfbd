// What searchers share: the trying of selections, and each of them as a function.
#pragma once

#include <lamina/plan/search.hpp>

#include <vector>

namespace lamina::detail::search {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

inline bool is_cost(double x, bool finite) { return x >= 0 && (!finite || x < infinity); }

/// What a selection is compared by: seconds, and bytes where both are infinite, so that a search
/// finds its way to what fits.
struct Score {
  double seconds = infinity, bytes = infinity;

  bool fits() const { return seconds < infinity; }
  friend bool operator<(const Score& a, const Score& b) {
    return a.seconds < b.seconds || (!a.fits() && !b.fits() && a.bytes < b.bytes);
  }
};

/// An entry of `hidden` or `bytes`, which may be empty.
inline double entry(const std::vector<std::vector<double>>& of, std::size_t v, int option) {
  return of.empty() ? 0 : of[v][std::size_t(option)];
}

/// Tries selections of a problem whose ties are folded, counts them and remembers the best.
class Trials {
 public:
  explicit Trials(const SearchProblem& problem);

  const SearchProblem& problem() const { return problem_; }
  const CostGraph& graph() const { return problem_.graph; }
  const Score& best() const { return best_; }
  const Selection& selection() const { return found_.selection; }
  std::int64_t steps() const { return found_.steps_tried; }

  Score score(const Selection& selection);
  /// Tries `simple` and the seeds.
  void seeds();
  /// Tries the selection that takes the fewest bytes if nothing has fitted.
  void least_memory();
  /// The end of an iteration.
  void record() { found_.convergence.push_back(best_.seconds); }
  /// Forgets the iterations so far: those of another searcher, which gave the seeds.
  void restart() { found_.convergence.clear(); }
  Found found(const std::vector<int>& tied) &&;

 private:
  int like_simple(const Selection& selection) const;

  const SearchProblem& problem_;
  Score best_;
  int like_simple_ = 0;  // options of the best that are as in `simple`
  Found found_;
};

void exact(Trials& trials, const SearchOptions& options);
void swarm(Trials& trials, const SearchOptions& options);
void mcmc(Trials& trials, const SearchOptions& options);
void brute(Trials& trials, const SearchOptions& options);
void fixed(Trials& trials, const SearchOptions& options);

/// Of each option of a vertex, a selection that has it and of which no other one that has it costs
/// less. Throws Error as cheapest() does for a table of more than `most` entries.
std::vector<Selection> cheapest_with(int vertex, const CostGraph& graph, const CostWeights& weights,
                                     std::int64_t most);

/// Makes a selection faster by changing one vertex at a time, or the two ends of an edge, until no
/// such change does so, or `most_steps` are tried.
void improve(Trials& trials, Selection selection, Score score, std::int64_t most_steps);
/// Makes the best one so far faster by changing one vertex and with it all up to some edges away,
/// as suits that best, beside the changes of improve(); until none does so, or `most_steps` are
/// tried.
void improve_more(Trials& trials, std::int64_t most_steps, std::int64_t most_entries);

}  // namespace lamina::detail::search
