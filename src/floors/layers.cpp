// How layers are placed, and what they cost, compiled once.
#include <lamina/layers/impl.hpp>
