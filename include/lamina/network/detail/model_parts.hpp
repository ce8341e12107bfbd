// What the models have in common.
#pragma once

#include <lamina/layers/avg_pool2d.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/models.hpp>

#include <algorithm>

namespace lamina {

inline Shape input_or(const ModelOptions& o, Shape own) { return o.input.c == 0 ? own : o.input; }
inline std::int64_t classes_or(const ModelOptions& o, std::int64_t own) {
  check(o.classes >= 0, "the number of classes must not be negative, got ", o.classes);
  return o.classes == 0 ? own : o.classes;
}

/// Hidden channels under the width multiplier, at least one.
inline std::int64_t widened(const ModelOptions& o, std::int64_t channels) {
  check(o.width > 0, "the width must be positive, got ", o.width);
  return std::max<std::int64_t>(1, std::int64_t(double(channels) * o.width + 0.5));
}

/// Averages features to so many rows and columns; where an image is so small that there are fewer,
/// they stay, and the layer behind has fewer weights.
inline void average_to(Network& net, std::int64_t most) {
  const Shape x = net.graph().back().shape;
  net.add<AvgPool2D>({.outputs = {std::min(most, x.h), std::min(most, x.w)}}, "avgpool");
}

/// Ends a model: every one ends in the layer "loss".
inline Network with_loss(Network net, const ModelOptions& o) {
  net.add<SoftmaxCrossEntropy>({.label_smoothing = o.label_smoothing}, "loss");
  return net;
}

}  // namespace lamina
