// The communication thread, and what ranks compare, compiled once.
#include <lamina/comm/impl.hpp>
