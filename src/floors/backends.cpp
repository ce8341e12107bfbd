// The choice of a back end, compiled once.
#include <lamina/kernels/impl/backends.hpp>
