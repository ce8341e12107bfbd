// Lines: rows of a profile, or sums of several, with their roofs; what the page's tables show.
#pragma once

#include <lamina/profile/roofline.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lamina::detail {

struct Line {
  ProfileRow row;            // of sums: the first row's words, the sum of all numbers
  std::optional<Roof> roof;  // none without ceilings
  int index = -1;            // in Profile::rows; -1 for sums
  std::size_t rows = 1;

  double wasted() const { return roof ? roof->wasted : 0; }
  double hidden() const {
    return row.comm.mean > row.exposed.mean ? row.comm.mean - row.exposed.mean : 0;
  }
  /// How much longer kernels take while communication runs; 0 if not measured.
  double slowdown() const { return row.alone.mean > 0 ? row.time.mean / row.alone.mean : 0; }
};

/// One per row, by wasted time, else by time; the largest first.
std::vector<Line> rows_of(const Profile& profile);

/// One per value of `key`, in the same order. Rows for which it is empty are left out.
std::vector<Line> sums_of(const Profile& profile,
                          const std::function<std::string(const ProfileRow&)>& key);

/// Keys: the layer itself, its type, and the size of its output ("56x56").
std::string by_layer(const ProfileRow& row);
std::string by_type(const ProfileRow& row);
std::string by_stage(const ProfileRow& row);

}  // namespace lamina::detail
