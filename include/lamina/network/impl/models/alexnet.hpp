// AlexNet as torchvision has it: the single-tower form of Krizhevsky, "One weird trick" (2014).
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/dropout.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/detail/model_parts.hpp>

namespace lamina {

LAMINA_INLINE Network alexnet(const ModelOptions& o) {
  Network net(input_or(o, {.c = 3, .h = 224, .w = 224}));
  int index = 0;
  const auto feature = [&] { return text("features.", index++); };
  const auto conv = [&](Conv2D::Options c) {
    c.channels = widened(o, c.channels);
    net.add<Conv2D>(c, feature());
    net.add<ReLU>({}, feature());
  };
  const auto pool = [&] { net.add<MaxPool2D>({.window = 3, .stride = 2}, feature()); };
  conv({.channels = 64, .kernel = 11, .stride = 4, .pad = 2});
  pool();
  conv({.channels = 192, .kernel = 5, .pad = 2});
  pool();
  conv({.channels = 384, .kernel = 3, .pad = 1});
  conv({.channels = 256, .kernel = 3, .pad = 1});
  conv({.channels = 256, .kernel = 3, .pad = 1});
  pool();
  average_to(net, 6);
  net.add<Dropout>({.rate = o.dropout}, "classifier.0");
  net.add<Linear>({.features = widened(o, 4096)}, "classifier.1");
  net.add<ReLU>({}, "classifier.2");
  net.add<Dropout>({.rate = o.dropout}, "classifier.3");
  net.add<Linear>({.features = widened(o, 4096)}, "classifier.4");
  net.add<ReLU>({}, "classifier.5");
  net.add<Linear>({.features = classes_or(o, 1000)}, "classifier.6");
  return with_loss(std::move(net), o);
}

}  // namespace lamina
