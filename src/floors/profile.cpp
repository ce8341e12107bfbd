// The profiler, the making of profiles, their table, compiled once.
#include <lamina/profile/impl.hpp>
