// Which names a pattern stands for, and what is said where there is none.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/base/text.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE bool matches(std::string_view pattern, std::string_view name) {
  // Where it fails behind a star, the star takes one character more.
  std::size_t p = 0, n = 0, star = pattern.npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1, n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

LAMINA_INLINE bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return matches(p, name); });
}

LAMINA_INLINE std::string no_match(std::string_view what, const std::string& pattern,
                                   const std::vector<std::string_view>& names) {
  std::string plain = pattern;
  std::erase(plain, '*');
  const bool several = pattern.find_first_of("*?") != pattern.npos;
  return text(several ? "no " : "there is no ", what, several ? " matches '" : " '", pattern, "'",
              suggestion(plain, names));
}

}  // namespace lamina
