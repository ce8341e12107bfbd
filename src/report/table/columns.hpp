// Columns: what the lines of a table stand for, and what stands in them; table.cpp lays them out.
#pragma once

#include <lamina/profile/roofline.hpp>
#include <lamina/profile/table.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// A layer with its passes, one pass, a group, or the rest: rows of a profile whose numbers add up.
struct TableLine {
  std::string name;
  std::vector<const ProfileRow*> rows;
  Roof roof = {};  // of all rows, where there are ceilings

  template <class Of>
  double sum(Of of) const {
    double s = 0;
    for (const ProfileRow* r : rows) s += of(*r);
    return s;
  }
  double seconds() const {
    return sum([](const ProfileRow& r) { return r.seconds(); });
  }
  Work work() const {
    Work w;
    for (const ProfileRow* r : rows) w += r->work;
    return w;
  }
  int layers() const;
  /// What all layers have in common, of the first pass; empty if they differ.
  std::string shared(std::string ProfileRow::*words) const;
};

/// In the wanted order; what is not among the top ones is summed up in the last. Throws Error where
/// the order needs ceilings that are not there.
std::vector<TableLine> collect(const Profile& profile, const TableOptions& options);

/// What a column is worth in a terminal too narrow for all, from the most to the least.
enum class Worth {
  always,  // even if it is empty
  needed,  // if it is not empty
  roof_share,
  bound,
  wasted,
  exposed,
  gflops,
  comm,
  layers,
  intensity,
  predicted,
  slowdown,
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
std::vector<Column> columns_of(const Profile& profile, const std::vector<TableLine>& lines,
                               const TableOptions& options);

}  // namespace lamina::detail
