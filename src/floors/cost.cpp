// Blocks and groups, compiled once.
#include <lamina/cost/impl.hpp>
