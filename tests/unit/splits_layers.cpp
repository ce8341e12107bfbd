// Layers under splits: the loss and every gradient are those of one rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("Conv2D under every split equals one rank") {
  check_all(between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}));
}

TEST_CASE("Linear under every split equals one rank") {
  check_all(between<Linear>({.features = 7}));
}
