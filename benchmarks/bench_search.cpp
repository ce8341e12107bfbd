// bench_search: how good the plans are that searches find, as % above the best one known: the best
// of all searches here, those that run for long included. Needs no ranks.
#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/plan/step_model.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lamina;

struct Case {
  const char *model, *cluster;
  int devices;
  std::int64_t batch;
};

constexpr Case cases[] = {
    {"lenet", "cpu-10g", 8, 64},         {"alexnet", "v100-100g", 16, 512},
    {"alexnet", "cpu-10g", 16, 128},     {"vgg16", "h100-ndr", 64, 256},
    {"vgg16", "v100-100g", 16, 128},     {"resnet20", "cpu-10g", 8, 64},
    {"resnet50", "h100-ndr", 64, 256},   {"resnet50", "v100-100g", 32, 64},
    {"resnet152", "v100-100g", 32, 128},
};

struct Options {
  std::string model;
  int seeds = 5;
  std::int64_t steps = 200000;
};

/// A network on a cluster, without a limit of memory, as a problem for searchers.
class Planned {
 public:
  explicit Planned(const Case& c)
      : cluster_(ready_cluster(c.cluster).of(c.devices)),
        model_(make_model(c.model), {.batch = c.batch}, {.momentum = 0.9}, cluster_, c.devices,
               std::make_shared<FormulaTimes>(cluster_)) {
    model_.add_splits(40);
    const Network& net = model_.network();
    if (net.graph().size() > 200) problem_.tied = model_.repeated();
    for (const std::string_view name : plan_names()) {
      const Plan plan = built_in_plan(name, net, c.batch, c.devices);
      const Selection s = model_.select(splits_of(decide(plan, net, c.batch, true)));
      if (name == "data")
        problem_.simple = s;
      else if (problem_.tied.empty() || untied(tied_last(s, problem_.tied), problem_.tied) == s)
        problem_.seeds.push_back(s);
    }
    problem_.graph = model_.graph();
    problem_.step = [this](const Selection& s) { return model_.seconds(s); };
  }

  Found search(const char* searcher, const SearchOptions& options) const {
    return make_searcher(searcher, options)->search(problem_);
  }

 private:
  /// The option of the last vertex of each group.
  static Selection tied_last(const Selection& s, const std::vector<int>& groups) {
    Selection to(std::size_t(*std::ranges::max_element(groups)) + 1);
    for (std::size_t v = 0; v < s.size(); ++v) to[std::size_t(groups[v])] = s[v];
    return to;
  }

  Cluster cluster_;
  StepModel model_;
  SearchProblem problem_;
};

/// What a search found, by seed, and how long it took.
struct Results {
  const char* name;
  std::vector<double> found = {};
  double seconds = 0;
};

/// A search, by its options.
struct Way {
  const char *name, *searcher;
  bool seeded, runs_long;

  SearchOptions options(std::uint64_t seed, std::int64_t steps) const {
    SearchOptions o{.seed = seed, .seeded = seeded};
    if (!runs_long) return o;
    o.mcmc.iterations = o.exact.most_steps = steps;
    o.exact.starts = 100, o.exact.overlaps.clear();
    for (int i = 0; i <= 20; ++i) o.exact.overlaps.push_back(i / 20.0);
    return o;
  }
};

constexpr Way ways[] = {{"exact", "exact", true, false},
                        {"swarm", "swarm", true, false},
                        {"swarm, unseeded", "swarm", false, false},
                        {"mcmc", "mcmc", true, false},
                        {"mcmc, unseeded", "mcmc", false, false},
                        {"exact, long", "exact", true, true},
                        {"mcmc, long", "mcmc", true, true},
                        {"mcmc, unseeded, long", "mcmc", false, true}};

void bench(const Case& c, const Options& o) {
  const Planned planned(c);
  std::vector<Results> all;
  double best = std::numeric_limits<double>::infinity();
  for (const Way& way : ways) {
    Results& r = all.emplace_back(Results{way.name});
    const int seeds = way.searcher == std::string_view("exact") ? 1 : o.seeds;
    const double begin = now();
    for (int seed = 1; seed <= seeds; ++seed) {
      const SearchOptions options = way.options(std::uint64_t(seed), o.steps);
      r.found.push_back(planned.search(way.searcher, options).seconds);
      best = std::min(best, r.found.back());
    }
    r.seconds = (now() - begin) / seeds;
  }
  std::printf("%s, %d of %s, batch %lld: %.4f ms\n", c.model, c.devices, c.cluster,
              static_cast<long long>(c.batch), 1e3 * best);
  for (const Results& r : all) {
    double mean = 0, worst = 0;
    for (const double s : r.found) {
      mean += 100 * (s / best - 1) / double(r.found.size());
      worst = std::max(worst, 100 * (s / best - 1));
    }
    std::printf("  %-22s mean %8.3f %%  worst %8.3f %%  %7.3f s\n", r.name, mean, worst, r.seconds);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How good the plans are that searches find", "bench_search");
  Options o;
  app.add_option("--model", o.model, "one of the models; all of the list by default");
  cli::count(app, "--seeds", o.seeds, 1, "of random numbers, for each search")
      ->capture_default_str();
  cli::count(app, "--steps", o.steps, 1, "of those that run for long")->capture_default_str();
  return cli::run(app, argc, argv, [&](World&) {
    check(o.model.empty() || std::ranges::count(cases, o.model, &Case::model) > 0, "--model ",
          o.model, ": it is not in the list");
    for (const Case& c : cases)
      if (o.model.empty() || o.model == c.model) bench(c, o);
    return 0;
  });
}
