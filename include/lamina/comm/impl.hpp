// The communication thread, and what ranks compare: what is compiled once.
#pragma once

#include <lamina/comm/impl/alike.hpp>
#include <lamina/comm/impl/queue.hpp>
#include <lamina/comm/impl/run.hpp>
