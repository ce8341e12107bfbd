// What back ends check, how blocks move on the host, plain weights, the numbers of an update, and
// updates part after part; compiled once, as fast as kernels.
#include <lamina/kernels/impl/checks.hpp>
#include <lamina/kernels/impl/move_boxes.hpp>
#include <lamina/kernels/impl/plain_weights.hpp>
#include <lamina/kernels/impl/update.hpp>
