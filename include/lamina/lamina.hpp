// Everything but the kernels of the reference back end.
#pragma once

#include <lamina/base/version.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/threads.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/avg_pool2d.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/concat.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/dropout.hpp>
#include <lamina/layers/flatten.hpp>
#include <lamina/layers/global_avg_pool.hpp>
#include <lamina/layers/leaky_relu.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/lrn.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/sigmoid.hpp>
#include <lamina/layers/softmax.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/layers/tanh.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/network.hpp>
#include <lamina/train/trainer.hpp>
