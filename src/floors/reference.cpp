// The reference back end, compiled once.
#include <lamina/kernels/reference/impl/backend.hpp>
