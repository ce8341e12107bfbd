// LeNet-5 (LeCun et al., 1998) with ReLU and maximum pooling in place of the original's sigmoids
// and trained averages, and with full connections between its two convolutions.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/detail/model_parts.hpp>

namespace lamina {

LAMINA_INLINE Network lenet(const ModelOptions& o) {
  Network net(input_or(o, {.c = 1, .h = 28, .w = 28}));
  net.add<Conv2D>({.channels = 6, .kernel = 5, .pad = 2}, "conv1");
  net.add<ReLU>({}, "relu1");
  net.add<MaxPool2D>({.window = 2}, "pool1");
  net.add<Conv2D>({.channels = 16, .kernel = 5}, "conv2");
  net.add<ReLU>({}, "relu2");
  net.add<MaxPool2D>({.window = 2}, "pool2");
  net.add<Linear>({.features = 120}, "fc1");
  net.add<ReLU>({}, "relu3");
  net.add<Linear>({.features = 84}, "fc2");
  net.add<ReLU>({}, "relu4");
  net.add<Linear>({.features = classes_or(o, 10)}, "fc3");
  return with_loss(std::move(net), o);
}

}  // namespace lamina
