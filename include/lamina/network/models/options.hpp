// ModelOptions: what all models can be told.
#pragma once

#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/network.hpp>

namespace lamina {

struct ModelOptions {
  std::int64_t classes = 0;    ///< 0: the model's own, 1000 or 10
  Shape input = {.c = 0};      ///< of one sample; without channels: the model's own
  double label_smoothing = 0;  ///< of the loss
  double dropout = 0.5;        ///< rate, in models that have dropout
  double width = 1;            ///< hidden channels and features of AlexNet and VGG, times this
  bool global_norm = false;    ///< batch norm over the samples of all ranks
  bool zero_gamma = false;     ///< the last batch norm of each residual block starts at zero
};

namespace detail {

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

/// Ends a model: every one ends in the layer "loss".
inline Network with_loss(Network net, const ModelOptions& o) {
  net.add<SoftmaxCrossEntropy>({.label_smoothing = o.label_smoothing}, "loss");
  return net;
}

}  // namespace detail
}  // namespace lamina
