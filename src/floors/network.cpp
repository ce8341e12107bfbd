// Networks and how they are placed; the models, compiled once.
#include <lamina/network/impl.hpp>
