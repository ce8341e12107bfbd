// Patterns, random numbers and wrapped text, compiled once.
#include <lamina/base/impl.hpp>
