// The communication thread, what ranks compare and share: what is compiled once.
#pragma once

#include <lamina/comm/impl/alike.hpp>
#include <lamina/comm/impl/memory_per_rank.hpp>
#include <lamina/comm/impl/queue.hpp>
#include <lamina/comm/impl/run.hpp>
