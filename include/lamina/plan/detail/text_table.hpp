// Tables of words that wrap: what the tables of plans and predictions are laid out by.
#pragma once

#include <lamina/base/text.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::detail::text_table {

/// Goes on in the next line only between its words, or messages.
using Cell = std::vector<std::string>;

inline Cell words(std::string_view s) {
  Cell cell;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t end = std::min(s.find(' ', at), s.size());
    cell.emplace_back(s.substr(at, end - at));
    at = end + 1;
  }
  return cell;
}

inline constexpr std::size_t unlimited = std::size_t(1) << 30;

inline std::vector<std::string> wrap(const Cell& cell, std::size_t width) {
  std::vector<std::string> lines = {""};
  for (const std::string& word : cell) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    append(lines.back(), text(lines.back().empty() ? "" : " ", word));
  }
  return lines;
}

/// The first cells of a row side by side, as many as fit when they are wrapped; those beyond them
/// below, where they say anything.
inline std::string layout(const std::vector<std::vector<Cell>>& rows, std::size_t limit) {
  constexpr std::size_t fair = 24, gap = 2, indent = 4;
  std::vector<std::size_t> widths, least;  // by column, the gap included
  for (std::size_t c = 0; c < rows[0].size(); ++c) {
    std::size_t width = 0, word = 0;
    for (const auto& row : rows) {
      width = std::max(width, wrap(row[c], unlimited)[0].size());
      for (const std::string& w : row[c]) word = std::max(word, w.size());
    }
    widths.push_back(gap + width), least.push_back(gap + std::max(word, std::min(width, fair)));
  }
  const auto sum = [](const auto& of, std::size_t columns) {
    return std::accumulate(of.begin(), of.begin() + std::ptrdiff_t(columns), std::size_t(0));
  };
  const std::size_t room = limit + gap;  // there is none behind the last one
  std::size_t beside = widths.size();
  while (beside > 3 && sum(least, beside) > room) --beside;
  for (std::size_t c = beside; c-- > 0;) {  // the last ones give way first
    const std::size_t others = sum(widths, beside) - widths[c];
    widths[c] = std::clamp(room - std::min(room, others), least[c], widths[c]);
  }
  std::string table;
  for (const auto& row : rows) {
    std::vector<std::string> lines;
    for (std::size_t c = 0; c < beside; ++c) {
      const auto cell = wrap(row[c].empty() ? Cell{"-"} : row[c], widths[c] - gap);
      if (cell.size() > lines.size()) lines.resize(cell.size());
      for (std::size_t i = 0; i < cell.size(); ++i) {
        lines[i].resize(sum(widths, c), ' ');
        append(lines[i], cell[i]);
      }
    }
    for (std::size_t c = beside; c < row.size(); ++c)
      for (const std::string& line : wrap(row[c], limit - indent))
        if (!line.empty()) lines.push_back(std::string(indent, ' ') + line);
    for (const std::string& line : lines) append(table, line + '\n');
  }
  return table;
}

}  // namespace lamina::detail::text_table
