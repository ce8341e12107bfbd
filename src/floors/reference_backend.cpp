// The reference back end by its name, compiled once. In a file of its own, so that a program may
// have another one under this name.
#include <lamina/kernels/reference/impl/backend.hpp>
