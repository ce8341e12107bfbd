// Blocks and groups: what is compiled once.
#pragma once

#include <lamina/cost/impl/blocks.hpp>
#include <lamina/cost/impl/group.hpp>
