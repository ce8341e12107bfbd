// Searches: what is checked and folded before, how selections are tried, and the searchers by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace lamina {

namespace detail::search {

LAMINA_INLINE Trials::Trials(const SearchProblem& problem) : problem_(problem) {}

LAMINA_INLINE int Trials::like_simple(const Selection& selection) const {
  int count = 0;
  for (std::size_t v = 0; v < selection.size(); ++v) count += selection[v] == problem_.simple[v];
  return count;
}

LAMINA_INLINE Score Trials::score(const Selection& selection) {
  Score score{infinity, bytes_of(graph(), selection)};
  if (score.bytes <= problem_.memory) {
    score.seconds = problem_.step ? problem_.step(selection) : seconds_of(graph(), selection);
    check(score.seconds >= 0, "a step of ", score.seconds, " seconds: expected at least 0");
    ++found_.steps_tried;
  }
  if (best_ < score) return score;
  const int like = like_simple(selection);
  if (score < best_ || like > like_simple_)
    best_ = score, found_.selection = selection, like_simple_ = like;
  return score;
}

LAMINA_INLINE void Trials::seeds() {
  score(problem_.simple);
  for (const Selection& seed : problem_.seeds) score(seed);
}

LAMINA_INLINE void Trials::least_memory() {
  if (best_.fits() || graph().bytes.empty()) return;
  Selection least;
  for (const auto& bytes : graph().bytes)
    least.push_back(int(std::ranges::min_element(bytes) - bytes.begin()));
  score(least);
}

LAMINA_INLINE Found Trials::found(const std::vector<int>& tied) && {
  found_.seconds = best_.seconds;
  if (!tied.empty()) found_.selection = untied(found_.selection, tied);
  return std::move(found_);
}

/// The same problem over groups, with `simple` filled in.
inline SearchProblem folded(const SearchProblem& problem) {
  SearchProblem to = problem;
  if (to.simple.empty()) to.simple.assign(to.graph.size(), 0);
  if (problem.tied.empty()) return to;
  to.graph = tied(problem.graph, problem.tied);
  to.simple = tied(to.simple, problem.tied);
  for (Selection& seed : to.seeds) seed = tied(seed, problem.tied);
  if (problem.step)
    to.step = [step = problem.step, groups = problem.tied](const Selection& selection) {
      return step(untied(selection, groups));
    };
  to.tied = {};
  return to;
}

struct Method {
  std::string_view name;
  void (*look)(Trials&, const SearchOptions&);
};

inline constexpr Method methods[] = {
    {"exact", exact}, {"swarm", swarm}, {"mcmc", mcmc}, {"brute", brute}, {"fixed", fixed}};

class MethodSearcher final : public Searcher {
 public:
  MethodSearcher(const Method& method, const SearchOptions& options)
      : method_(method), options_(options) {}

  std::string_view name() const override { return method_.name; }

  Found search(const SearchProblem& given) const override {
    given.validate();
    SearchProblem problem = given;
    if (method_.look == fixed && !options_.fixed.empty()) {
      problem.graph.validate(options_.fixed, "the fixed selection");
      problem.simple = options_.fixed;
    }
    problem = folded(problem);
    Trials trials(problem);
    method_.look(trials, options_);
    return std::move(trials).found(given.tied);
  }

 private:
  Method method_;
  SearchOptions options_;
};

/// Throws Error for what no searcher could work with.
inline void validate(const SearchOptions& o) {
  check(!o.exact.overlaps.empty(), "exact: no overlap to begin with");
  for (const double overlap : o.exact.overlaps)
    check(overlap >= 0 && overlap <= 1, "exact: overlap: expected 0 to 1, got ", overlap);
  check(o.exact.starts >= 0, "exact: expected at least 0 starts, got ", o.exact.starts);
  check(o.swarm.particles >= 1, "swarm: expected at least 1 particle, got ", o.swarm.particles);
  check(o.swarm.iterations >= 0, "swarm: expected at least 0 iterations, got ", o.swarm.iterations);
  check(o.mcmc.iterations >= 0, "mcmc: expected at least 0 iterations, got ", o.mcmc.iterations);
  check(o.mcmc.temperature > 0, "mcmc: expected a temperature above 0, got ", o.mcmc.temperature);
}

}  // namespace detail::search

LAMINA_INLINE void SearchProblem::validate() const {
  graph.validate();
  if (!simple.empty()) graph.validate(simple, "simple");
  for (std::size_t i = 0; i < seeds.size(); ++i) graph.validate(seeds[i], text("seed ", i));
  check(memory >= 0, "memory: expected at least 0 bytes, got ", memory);
  check(memory == detail::search::infinity || !graph.bytes.empty(),
        "memory is limited, but the graph has no bytes");
}

LAMINA_INLINE std::vector<std::string_view> searcher_names() {
  std::vector<std::string_view> names;
  for (const auto& method : detail::search::methods) names.push_back(method.name);
  return names;
}

LAMINA_INLINE std::unique_ptr<Searcher> make_searcher(std::string_view name,
                                                      const SearchOptions& options) {
  detail::search::validate(options);
  for (const auto& method : detail::search::methods)
    if (method.name == name)
      return std::make_unique<detail::search::MethodSearcher>(method, options);
  throw Error(text("search '", name, "' is not known", suggestion(name, searcher_names()),
                   ": expected exact, swarm, mcmc, brute or fixed"));
}

}  // namespace lamina
