// The kernels of the reference back end, compiled once.
#include <lamina/kernels/reference/impl/reference.hpp>
