// Plans, compiled once.
#include <lamina/plan/impl.hpp>
