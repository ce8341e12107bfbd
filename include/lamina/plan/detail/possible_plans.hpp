// The built-in plans that are possible.
#pragma once

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

}  // namespace lamina::detail
