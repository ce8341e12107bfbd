// Patterns of names, as a shell has them: * stands for any characters, ? for one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// Whether the whole name is what the pattern stands for.
bool matches(std::string_view pattern, std::string_view name);
/// Whether it is what any of the patterns stands for.
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);
/// What is wrong with a pattern that none of the names matches: "no layer matches 'conv*'", or
/// "there is no layer 'con1'", and the nearest name. `what` says what the names are of.
std::string no_match(std::string_view what, const std::string& pattern,
                     const std::vector<std::string_view>& names);

}  // namespace lamina
