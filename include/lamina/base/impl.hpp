// Patterns, random numbers and wrapped text: what is compiled once.
#pragma once

#include <lamina/base/impl/pattern.hpp>
#include <lamina/base/impl/random.hpp>
#include <lamina/base/impl/wrap.hpp>
