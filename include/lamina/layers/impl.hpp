// How layers are placed, and what they cost: what is compiled once.
#pragma once

#include <lamina/layers/impl/add.hpp>
#include <lamina/layers/impl/batch_norm.hpp>
#include <lamina/layers/impl/concat.hpp>
#include <lamina/layers/impl/conv2d.hpp>
#include <lamina/layers/impl/dropout.hpp>
#include <lamina/layers/impl/exchange.hpp>
#include <lamina/layers/impl/global_avg_pool.hpp>
#include <lamina/layers/impl/halo.hpp>
#include <lamina/layers/impl/linear.hpp>
#include <lamina/layers/impl/lrn.hpp>
#include <lamina/layers/impl/pad_channels.hpp>
#include <lamina/layers/impl/pool.hpp>
#include <lamina/layers/impl/reshard.hpp>
#include <lamina/layers/impl/site.hpp>
#include <lamina/layers/impl/softmax_cross_entropy.hpp>
#include <lamina/layers/impl/unary.hpp>
#include <lamina/layers/impl/weighted.hpp>
