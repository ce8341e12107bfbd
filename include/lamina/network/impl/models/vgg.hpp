// VGG (Simonyan and Zisserman, 2015) without batch norm, as torchvision has it.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/dropout.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/detail/model_parts.hpp>

namespace lamina {

LAMINA_INLINE Network vgg(std::array<int, 5> convs, const ModelOptions& o) {
  Network net(input_or(o, {.c = 3, .h = 224, .w = 224}));
  int index = 0;
  const auto feature = [&] { return text("features.", index++); };
  std::int64_t channels = 64;
  for (const int count : convs) {
    for (int i = 0; i < count; ++i) {
      net.add<Conv2D>({.channels = widened(o, channels), .kernel = 3, .pad = 1, .he_normal = true},
                      feature());
      net.add<ReLU>({}, feature());
    }
    net.add<MaxPool2D>({.window = 2}, feature());
    channels = std::min<std::int64_t>(2 * channels, 512);
  }
  average_to(net, 7);
  index = 0;
  const auto classifier = [&] { return text("classifier.", index++); };
  for (int i = 0; i < 2; ++i) {
    net.add<Linear>({.features = widened(o, 4096), .normal = 0.01}, classifier());
    net.add<ReLU>({}, classifier());
    net.add<Dropout>({.rate = o.dropout}, classifier());
  }
  net.add<Linear>({.features = classes_or(o, 1000), .normal = 0.01}, classifier());
  return with_loss(std::move(net), o);
}

LAMINA_INLINE Network vgg11(const ModelOptions& o) { return vgg({1, 1, 2, 2, 2}, o); }
LAMINA_INLINE Network vgg13(const ModelOptions& o) { return vgg({2, 2, 2, 2, 2}, o); }
LAMINA_INLINE Network vgg16(const ModelOptions& o) { return vgg({2, 2, 3, 3, 3}, o); }
LAMINA_INLINE Network vgg19(const ModelOptions& o) { return vgg({2, 2, 4, 4, 4}, o); }

}  // namespace lamina
