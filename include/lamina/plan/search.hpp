// The search for the cheapest selection: a graph whose vertices have options, what these cost,
// alone and beside each other, and those who look for the options to take. What the options are,
// nobody here knows.
#pragma once

#include <lamina/base/error.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

namespace lamina {

/// An option of each vertex, by its number.
using Selection = std::vector<int>;

/// How much of what can be hidden is, and what memory is worth.
struct CostWeights {
  double overlap = 0;           ///< the part of `hidden` that costs nothing, from 0 to 1
  double seconds_per_byte = 0;  ///< at least 0
};

/// What options cost: a selection c, with overlap rho and lambda seconds per byte,
///   sum over vertices v of seconds[v][c_v] + (1 - rho) hidden[v][c_v] + lambda bytes[v][c_v]
///     + sum over edges e from u to v of e.seconds[c_u, c_v].
struct CostGraph {
  /// Two vertices whose options cost something together; there may be several between the same two.
  struct Edge {
    int from = 0, to = 0;
    std::vector<double> seconds = {};  ///< [option of from * options of to + option of to]
  };
  std::vector<std::vector<double>> seconds = {};  ///< [vertex][option]; infinite where impossible
  std::vector<std::vector<double>> hidden = {};  ///< seconds that overlap may hide, as above; or {}
  std::vector<std::vector<double>> bytes = {};   ///< memory, as above; or {}
  std::vector<Edge> edges = {};

  std::size_t size() const { return seconds.size(); }
  int options(int v) const { return int(seconds[std::size_t(v)].size()); }

  /// Throws Error, naming the vertex or the edge, for a vertex without options, for sizes that do
  /// not fit each other, for an edge from or to no vertex or from one to itself, and for what is
  /// negative or no number. `hidden` and `bytes` must be finite.
  void validate() const;
  /// Throws Error unless `selection`, which is called `name` there, has an option of each vertex.
  void validate(const Selection& selection, std::string_view name = "the selection") const;
};

/// What a selection costs, in seconds.
double seconds_of(const CostGraph& graph, const Selection& selection,
                  const CostWeights& weights = {});
/// What it takes of memory; 0 without `bytes`.
double bytes_of(const CostGraph& graph, const Selection& selection);

/// Entries of the largest table that cheapest() may go through.
inline constexpr std::int64_t largest_table = std::int64_t(1) << 27;

/// A selection of which no other costs less. Where several cost the same, but for rounding (a part
/// of n / 2^46 for n vertices), the one with the most options as in `simple`, which may be empty;
/// where these are several, too, always the same one. If all are infinite, so is what this one
/// costs.
///
/// Vertices are eliminated one after the other, each by a table over its neighbours that has the
/// least that it can cost beside them (dynamic programming: as Jia, Lin, Qi and Aiken, ICML 2018,
/// eliminate nodes and edges; in general Bertele and Brioschi, 1972). The next one is always that
/// with the smallest table. Chains, trees, residual blocks and parallel branches need no table of
/// more than three vertices. Throws Error where one would have more than `most` entries.
Selection cheapest(const CostGraph& graph, const CostWeights& weights = {},
                   const Selection& simple = {}, std::int64_t most = largest_table);

/// Vertices as groups, of which each takes one option: `groups` has the number of a group, from 0
/// without gaps, for each vertex. The graph of the groups has the sums of what their vertices cost;
/// an edge within a group is part of what its vertex costs. Throws Error, naming the vertices,
/// where those of a group have not as many options.
CostGraph tied(const CostGraph& graph, const std::vector<int>& groups);
/// The option of each group. Throws Error, naming the vertices, where those of a group differ.
Selection tied(const Selection& selection, const std::vector<int>& groups);
/// The option of each vertex, of options of groups.
Selection untied(const Selection& of_groups, const std::vector<int>& groups);

struct SearchProblem {
  CostGraph graph = {};
  /// What a step takes with this selection, in seconds, as well as anybody can say; infinite where
  /// it is impossible or does not fit into memory. It need not be a sum. Without it, what the graph
  /// says (seconds_of).
  std::function<double(const Selection&)> step = {};
  /// Bytes that a selection may take by the graph; one that takes more counts as infinite.
  double memory = std::numeric_limits<double>::infinity();
  /// Of two selections that take the same, the one wins that has more options in common with this
  /// one. Empty = the first option of each vertex.
  Selection simple = {};
  std::vector<Selection> seeds = {};  ///< selections to begin with, beside `simple`
  std::vector<int> tied = {};         ///< vertices that take the same option: see tied(); or {}

  /// Throws Error as those of its members do, naming the seed where it is one.
  void validate() const;
};

struct Found {
  Selection selection = {};
  /// Of a step; infinite where nothing that was tried fits. Then `selection` is the one that takes
  /// the fewest bytes of all that there are (but for `fixed`, which has no other).
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t steps_tried = 0;          ///< calls of `step`, or of what stands in for it
  std::vector<double> convergence = {};  ///< seconds of the best so far, after each iteration
};

class Searcher {
 public:
  virtual ~Searcher() = default;
  virtual std::string_view name() const = 0;
  /// Throws Error where the problem is none (SearchProblem::validate), and where `step` gives
  /// something negative or no number.
  virtual Found search(const SearchProblem& problem) const = 0;
};

struct ExactOptions {
  /// Of CostWeights, one after the other.
  std::vector<double> overlaps = {0, 0.25, 0.5, 0.75, 0.9, 1};
  int starts = 12;                  ///< how many of the selections that these give are improved
  std::int64_t most_steps = 16000;  ///< that improving may try, the last fifth by windows
};

/// Weights as Clerc and Kennedy have them, "The particle swarm - explosion, stability, and
/// convergence in a multidimensional complex space", 2002.
struct SwarmOptions {
  int particles = 50, iterations = 200;
  double inertia = 0.7298;    ///< of the velocity
  double cognitive = 1.4962;  ///< pull of the best that the particle has seen
  double social = 1.4962;     ///< pull of the best that any has seen
  double craziness = 0.5;     ///< chance that a move gives some vertex any other option
};

struct McmcOptions {
  std::int64_t iterations = 20000;
  /// A step that takes longer by this part of what a vertex takes on average is accepted with the
  /// chance 1 / e.
  double temperature = 0.2;
};

/// For all searchers; docs/planning-search.md says who reads what.
struct SearchOptions {
  std::uint64_t seed = 0;  ///< of random numbers: the same one, the same result
  /// Whether `swarm` and `mcmc` start with what `exact` finds; else the swarm starts with random
  /// selections only, and the chain with the best of `simple` and the seeds.
  bool seeded = true;
  Selection fixed = {};  ///< what `fixed` evaluates; empty = `simple`
  ExactOptions exact = {};
  SwarmOptions swarm = {};
  McmcOptions mcmc = {};
  std::int64_t most_selections = 10'000'000;  ///< that `brute` may try
  std::int64_t most_entries = largest_table;  ///< see cheapest()
};

/// `exact`, `swarm`, `mcmc`, `brute` and `fixed`; docs/planning-search.md says what they do.
std::vector<std::string_view> searcher_names();
/// One of them. Throws Error for an unknown name, with the nearest one, and for options that are
/// impossible.
std::unique_ptr<Searcher> make_searcher(std::string_view name, const SearchOptions& options = {});

}  // namespace lamina
