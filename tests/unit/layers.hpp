// What the tests of layers share: small networks on the reference back end in f64.
#pragma once

#include "catch.hpp"
#include "support/peek.hpp"

#include <lamina/base/random.hpp>
#include <lamina/kernels/backends.hpp>
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
#include <lamina/layers/sigmoid.hpp>
#include <lamina/layers/softmax.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/layers/tanh.hpp>
#include <lamina/network/placed.hpp>

namespace lamina::test {

/// A placed network with normal random samples and the labels 0, 1, 2, 0, ...
struct Run {
  PlacedNetwork net;
  Tensor labels;
  Stream stream;
  Context context{stream};

  Run(const Network& of, std::int64_t batch, bool training = true, std::int64_t classes = 3)
      : net(of.place({.batch = batch,
                      .backend = reference_backend(),
                      .dtype = DType::f64,
                      .training = training})) {
    net.initialize(7);
    const auto x = peek(net.x()).elements<double>();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = Random(1, 2).normal(i);
    labels = Tensor({batch, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    for (std::int64_t i = 0; i < batch; ++i) peek(labels).as<std::int32_t>()[i] = int(i % classes);
    context.targets = labels;
    context.training = training;
  }
  Run(const Run&) = delete;

  /// Forward, and backward in training; returns the first element of y: the loss.
  double operator()() {
    net.forward(context);
    if (context.training) net.backward(context);
    return peek(net.y()).as<double>()[0];
  }
  std::span<double> x() { return peek(net.x()).elements<double>(); }
  std::span<double> y() { return peek(net.y()).elements<double>(); }
  Parameter& parameter(std::string_view name) {
    for (const auto& n : net.parameters())
      if (n.name == name) return *n.parameter;
    throw Error(text("no parameter ", name));
  }
  std::span<double> value(std::string_view name) {
    return peek(parameter(name).value).elements<double>();
  }
};

/// An element, or 0 outside of the image.
inline double at(std::span<const double> x, Shape s, std::int64_t n, std::int64_t c, std::int64_t h,
                 std::int64_t w) {
  if (h < 0 || h >= s.h || w < 0 || w >= s.w) return 0;
  return x[std::size_t(((n * s.c + c) * s.h + h) * s.w + w)];
}

/// Calls f(n, c, h, w, index) for each element of a plain tensor.
template <class F>
void each(Shape s, F&& f) {
  std::size_t i = 0;
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t c = 0; c < s.c; ++c)
      for (std::int64_t h = 0; h < s.h; ++h)
        for (std::int64_t w = 0; w < s.w; ++w) f(n, c, h, w, i++);
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace lamina::test
