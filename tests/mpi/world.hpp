// The ranks of mpirun, which main.cpp makes once for all tests.
#pragma once

#include <lamina/comm/world.hpp>

namespace lamina::test {

World& world();

}  // namespace lamina::test
