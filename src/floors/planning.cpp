// The reference back end without memory, compiled once. In a file of its own, so that a program
// which has another back end under the name of the reference still has this one.
#include <lamina/kernels/reference/impl/planning.hpp>
