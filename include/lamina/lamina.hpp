// Everything but the kernels of the reference back end, and what is compiled once (impl/); with
// LAMINA_HEADER_ONLY those, too, and nothing needs to be linked.
#pragma once

#include <lamina/base/threads.hpp>
#include <lamina/base/version.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/samples.hpp>
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
#include <lamina/layers/pad_channels.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/reorder.hpp>
#include <lamina/layers/reshard.hpp>
#include <lamina/layers/sigmoid.hpp>
#include <lamina/layers/softmax.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/layers/tanh.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/network.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/network/predict.hpp>
#include <lamina/plan/cluster.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/plan/search.hpp>
#include <lamina/profile/listen.hpp>
#include <lamina/profile/machine.hpp>
#include <lamina/profile/measure.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>
#include <lamina/profile/table.hpp>
#include <lamina/profile/trace.hpp>
#include <lamina/train/trainer.hpp>

#ifdef LAMINA_HEADER_ONLY
#include <lamina/header_only.hpp>
#endif
