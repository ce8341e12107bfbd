// Catch2, version 2 or 3, whichever is installed.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
using Catch::Matchers::Contains;
inline auto ContainsSubstring(const std::string& part) { return Contains(part); }
#endif

namespace lamina::test {

/// Runs the test cases of this program that `argv` names, as Catch2's main() would.
int run_cases(int argc, char** argv);

}  // namespace lamina::test
