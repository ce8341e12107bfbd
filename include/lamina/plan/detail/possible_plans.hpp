// The built-in plans that are possible, and what a plan takes of memory.
#pragma once

#include <lamina/network/predict.hpp>
#include <lamina/plan/plan.hpp>

#include <string_view>
#include <utility>
#include <vector>

namespace lamina::detail {

/// Their names and splits: `data`, or what is next to that, first.
inline std::vector<std::pair<std::string_view, std::vector<Split>>> possible_plans(
    const Network& network, std::int64_t batch, int ranks) {
  std::vector<std::pair<std::string_view, std::vector<Split>>> all;
  for (const std::string_view name : plan_names()) try {
      const Plan plan = built_in_plan(name, network, batch, ranks);
      all.push_back({name, splits_of(decide(plan, network, batch, name == "data"))});
    } catch (const Error&) {  // none for so many ranks
    }
  return all;
}

/// Of the rank that it takes the most of: see predict_memory().
inline Memory most_memory(const Network& network, PlaceOptions placing,
                          const std::vector<Split>& splits, int ranks, const UpdateRule& rule) {
  placing.splits = splits;
  Memory most;
  for (const Memory& m : predict_memory(network, placing, ranks, rule))
    if (m.total() > most.total()) most = m;
  return most;
}

}  // namespace lamina::detail
