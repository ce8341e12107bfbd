// Columns: what stands in the lines of a table; table.cpp lays them out.
#pragma once

#include <lamina/profile/detail/lines.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// What a column is worth in a terminal too narrow for all, from the most to the least.
enum class Worth {
  always,  // even if it is empty
  needed,  // if it is not empty
  roof_share,
  bound,
  wasted,
  exposed,
  split,
  gflops,
  comm,
  layers,
  intensity,
  predicted,
  slowdown,
  late,
  gflop,
  mbytes,
  roof,
  imbalance,
  type,
  counters,
  algorithm,
  alone,
  description
};

struct Cell {
  std::string text;
  const char* style = "";  // an ANSI escape sequence
};

struct Column {
  std::string head;
  Worth worth;
  bool left;  // words to the left, numbers to the right
  std::vector<Cell> cells;
};

/// All that have something to say, from left to right. The first one has the names.
std::vector<Column> columns_of(const Profile& profile, const std::vector<Line>& lines,
                               const TableOptions& options);

}  // namespace lamina::detail
