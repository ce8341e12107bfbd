// How blocks move on the host, compiled once, as fast as kernels.
#include <lamina/kernels/impl/move_boxes.hpp>
