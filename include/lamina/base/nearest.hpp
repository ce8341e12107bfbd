// nearest(): the known name that an unknown one was probably meant to be, for error messages.
#pragma once

#include <lamina/base/text.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lamina {

/// Single-character insertions, deletions and replacements that turn `a` into `b` (Levenshtein).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() +
                               1);  // distances of a's first i characters to b's prefixes
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The first of the closest names; empty if `names` is, or if most of the name would have to
/// change.
template <class Names>
std::string_view nearest(std::string_view name, const Names& names) {
  std::string_view best;
  std::size_t least = std::max<std::size_t>(name.size() / 2, 2) + 1;
  for (const std::string_view candidate : names)
    if (const std::size_t d = edit_distance(name, candidate); d < least)
      best = candidate, least = d;
  return best;
}

/// " (did you mean fc6?)", or nothing.
template <class Names>
std::string suggestion(std::string_view name, const Names& names) {
  const auto guess = nearest(name, names);
  return guess.empty() ? std::string() : text(" (did you mean ", guess, "?)");
}

}  // namespace lamina
