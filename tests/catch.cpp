// Catch2 itself, compiled once for all test programs: version 2 is a header, which the macro fills
// with its implementation.
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

int lamina::test::run_cases(int argc, char** argv) { return Catch::Session().run(argc, argv); }
