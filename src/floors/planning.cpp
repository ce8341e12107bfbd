// The reference back end without memory, compiled once.
#include <lamina/kernels/reference/impl/planning.hpp>
