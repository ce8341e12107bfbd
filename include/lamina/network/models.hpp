// The models, by function and by name.
#pragma once

#include <lamina/network/network.hpp>

#include <array>
#include <string_view>
#include <vector>

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

/// LeNet-5 (LeCun et al., 1998) with ReLU and maximum pooling in place of the original's sigmoids
/// and trained averages, and with full connections between its two convolutions. For 1x28x28 and 10
/// classes unless told otherwise.
Network lenet(const ModelOptions& o = {});

/// AlexNet as torchvision has it: the single-tower form of Krizhevsky, "One weird trick" (2014).
/// For 3x224x224 and 1000 classes unless told otherwise; the features before the classifier must be
/// a multiple of 6x6, or smaller: then the first linear layer has fewer weights.
Network alexnet(const ModelOptions& o = {});

/// VGG (Simonyan and Zisserman, 2015) without batch norm, as torchvision has it. `convs`:
/// convolutions in each of the five stages. For 3x224x224 and 1000 classes unless told otherwise;
/// the features before the classifier must be a multiple of 7x7, or smaller, as with AlexNet.
Network vgg(std::array<int, 5> convs, const ModelOptions& o = {});
Network vgg11(const ModelOptions& o = {});
Network vgg13(const ModelOptions& o = {});
Network vgg16(const ModelOptions& o = {});
Network vgg19(const ModelOptions& o = {});

/// ResNet (He et al., 2016) as torchvision has it (v1.5: a bottleneck strides in its 3x3
/// convolution). `blocks`: residual blocks in each of the four stages. For 3x224x224 and 1000
/// classes unless told otherwise; any size from 32x32 on will do.
Network resnet(std::array<int, 4> blocks, bool bottlenecks, const ModelOptions& o = {});
Network resnet18(const ModelOptions& o = {});
Network resnet34(const ModelOptions& o = {});
Network resnet50(const ModelOptions& o = {});
Network resnet101(const ModelOptions& o = {});
Network resnet152(const ModelOptions& o = {});

/// Section 4.2 of the paper: three stages of `blocks` blocks, 6 * blocks + 2 layers with weights,
/// and shortcuts without parameters (option A: every second row and column, zeros for the new
/// channels). For 3x32x32 and 10 classes unless told otherwise.
Network cifar_resnet(int blocks, const ModelOptions& o = {});
Network resnet20(const ModelOptions& o = {});
Network resnet56(const ModelOptions& o = {});

std::vector<std::string_view> model_names();
/// Throws Error for an unknown name, with the nearest known one, and for an input that does not
/// fit.
Network make_model(std::string_view name, const ModelOptions& options = {});

}  // namespace lamina
