// ResNet (He et al., 2016): for large images as torchvision has it (v1.5: a bottleneck strides in
// its 3x3 convolution), and the paper's small ones for CIFAR-10.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/avg_pool2d.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/global_avg_pool.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/max_pool2d.hpp>
#include <lamina/layers/pad_channels.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/detail/model_parts.hpp>

namespace lamina {

namespace detail {

/// Builds residual networks under torchvision's names.
struct ResNetBuilder {
  Network& net;
  const ModelOptions& o;

  /// Convolution and batch norm. `scale`: initial weight of the latter.
  Node conv_norm(Node x, Conv2D::Options conv, const std::string& conv_name,
                 const std::string& norm_name, double scale = 1) const {
    conv.bias = false, conv.he_normal = true;
    return x.add<Conv2D>(conv, conv_name)
        .add<BatchNorm>({.global = o.global_norm, .scale = scale}, norm_name);
  }

  /// Convolution `i` of a block with its batch norm and, but for the last one, its ReLU.
  Node unit(Node x, const std::string& block, int i, bool last, Conv2D::Options conv) const {
    const Node y = conv_norm(x, conv, text(block, "conv", i), text(block, "bn", i),
                             last && o.zero_gamma ? 0 : 1);
    return last ? y : y.add<ReLU>({}, text(block, "relu", i));
  }

  Node join(Node y, Node shortcut, const std::string& block, int relu) const {
    return net.join<Add>({y, shortcut}, {}, block + "add").add<ReLU>({}, text(block, "relu", relu));
  }

  Node basic(Node x, const std::string& block, std::int64_t c, int stride, Node shortcut) const {
    Node y = unit(x, block, 1, false, {.channels = c, .kernel = 3, .stride = stride, .pad = 1});
    y = unit(y, block, 2, true, {.channels = c, .kernel = 3, .pad = 1});
    return join(y, shortcut, block, 2);
  }

  Node bottleneck(Node x, const std::string& block, std::int64_t c, int stride,
                  Node shortcut) const {
    Node y = unit(x, block, 1, false, {.channels = c});
    y = unit(y, block, 2, false, {.channels = c, .kernel = 3, .stride = stride, .pad = 1});
    y = unit(y, block, 3, true, {.channels = 4 * c});
    return join(y, shortcut, block, 3);
  }
};

}  // namespace detail

LAMINA_INLINE Network resnet(std::array<int, 4> blocks, bool bottlenecks, const ModelOptions& o) {
  Network net(input_or(o, {.c = 3, .h = 224, .w = 224}));
  const detail::ResNetBuilder build{net, o};
  Node x = build.conv_norm(net.input(), {.channels = 64, .kernel = 7, .stride = 2, .pad = 3},
                           "conv1", "bn1");
  x = x.add<ReLU>({}, "relu").add<MaxPool2D>({.window = 3, .stride = 2, .pad = 1}, "maxpool");
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t c = 64 << stage, outputs = bottlenecks ? 4 * c : c;
    for (int i = 0; i < blocks[std::size_t(stage)]; ++i) {
      const std::string block = text("layer", stage + 1, '.', i, '.');
      const int stride = i == 0 && stage > 0 ? 2 : 1;
      Node shortcut = x;
      if (stride != 1 || x.shape().c != outputs)
        shortcut = build.conv_norm(x, {.channels = outputs, .stride = stride},
                                   block + "downsample.0", block + "downsample.1");
      x = bottlenecks ? build.bottleneck(x, block, c, stride, shortcut)
                      : build.basic(x, block, c, stride, shortcut);
    }
  }
  x.add<GlobalAvgPool>({}, "avgpool").add<Linear>({.features = classes_or(o, 1000)}, "fc");
  return with_loss(std::move(net), o);
}

LAMINA_INLINE Network resnet18(const ModelOptions& o) { return resnet({2, 2, 2, 2}, false, o); }
LAMINA_INLINE Network resnet34(const ModelOptions& o) { return resnet({3, 4, 6, 3}, false, o); }
LAMINA_INLINE Network resnet50(const ModelOptions& o) { return resnet({3, 4, 6, 3}, true, o); }
LAMINA_INLINE Network resnet101(const ModelOptions& o) { return resnet({3, 4, 23, 3}, true, o); }
LAMINA_INLINE Network resnet152(const ModelOptions& o) { return resnet({3, 8, 36, 3}, true, o); }

LAMINA_INLINE Network cifar_resnet(int blocks, const ModelOptions& o) {
  Network net(input_or(o, {.c = 3, .h = 32, .w = 32}));
  const detail::ResNetBuilder build{net, o};
  Node x = build.conv_norm(net.input(), {.channels = 16, .kernel = 3, .pad = 1}, "conv1", "bn1");
  x = x.add<ReLU>({}, "relu");
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t c = 16 << stage;
    for (int i = 0; i < blocks; ++i) {
      const std::string block = text("layer", stage + 1, '.', i, '.');
      const int stride = i == 0 && stage > 0 ? 2 : 1;
      Node shortcut = x;
      if (stride != 1)
        shortcut = x.add<AvgPool2D>({.window = 1, .stride = stride}, block + "subsample")
                       .add<PadChannels>({.channels = c}, block + "pad");
      x = build.basic(x, block, c, stride, shortcut);
    }
  }
  x.add<GlobalAvgPool>({}, "avgpool").add<Linear>({.features = classes_or(o, 10)}, "fc");
  return with_loss(std::move(net), o);
}

LAMINA_INLINE Network resnet20(const ModelOptions& o) { return cifar_resnet(3, o); }
LAMINA_INLINE Network resnet56(const ModelOptions& o) { return cifar_resnet(9, o); }

}  // namespace lamina
