// The table of a profile, as text for a terminal.
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>
#include <string_view>

namespace lamina {

struct TableOptions {
  enum class Sort { order, time, wasted, name };
  enum class Group { layer, type, stage };  ///< a stage: all layers whose outputs are of one size

  int width = 120;    ///< columns of the terminal; the least important ones are left out
  bool wide = false;  ///< a row per pass with every column, as wide as it gets
  Sort sort = Sort::order;
  Group group = Group::layer;
  int top = 0;  ///< rows by time (or by wasted time); the others are summed up in one. 0 = all
  bool colour = false;  ///< ANSI colours, for a terminal
};

/// "order", "time", "wasted" or "name". Throws Error for others.
TableOptions::Sort parse_sort(std::string_view name);
/// "layer", "type" or "stage". Throws Error for others.
TableOptions::Group parse_group(std::string_view name);

/// One row per layer with its passes side by side (or per pass, see `wide`), then the totals. Ends
/// with a newline.
std::string table(const Profile& profile, const TableOptions& options = {});

}  // namespace lamina
