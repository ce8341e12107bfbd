// The sections of the report's page, as HTML.
#pragma once

#include <lamina/profile/profile.hpp>
#include <lamina/profile/roofline.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace lamina::detail {

/// What a reader should know first, in plain words; the names of layers are escaped.
std::vector<std::string> findings(const Profile& profile);
/// The same for what changed between two runs.
std::vector<std::string> findings(const Profile& before, const Profile& after);

/// All rows and, in a second body, all layers, ranked by wasted time.
std::string rows_table(const Profile& profile);
/// The step and its parts in both runs.
std::string totals_table(const Profile& before, const Profile& after);
/// Rows of both runs: what changed, the largest difference first, then what did not.
std::string changes_table(const Profile& before, const Profile& after);
/// How layers are split, with what was predicted and which plans were timed, where there is a plan;
/// empty where all are split alike and nothing was predicted.
std::string plan_tables(const Profile& profile);
/// Where ranks, or the shares of workers, changed; empty where they did not.
std::string ranks_table(const Profile& profile);
/// Time and waste by type and by stage.
std::string groups_tables(const Profile& profile);
/// Ceilings of compute, memory and collectives.
std::string machine_tables(const Machine& machine);

/// "3 rows", "1 row"
inline std::string plural(std::size_t n, std::string_view what) {
  return text(n, ' ', what, n == 1 ? "" : "s");
}

/// A dot in the colour of what bounds the row, and the word; a flag where it is above its roof.
std::string bound_label(const Roof& roof);

}  // namespace lamina::detail
