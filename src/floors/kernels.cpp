// What back ends check, how blocks move on the host, and the numbers of an update; compiled once,
// as fast as kernels.
#include <lamina/kernels/impl/checks.hpp>
#include <lamina/kernels/impl/move_boxes.hpp>
#include <lamina/kernels/impl/step_values.hpp>
