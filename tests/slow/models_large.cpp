// The models that only fit large images, run once on the reference back end.
#include "catch.hpp"

#include <lamina/base/random.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>

#include <cmath>

using namespace lamina;

TEST_CASE("AlexNet and VGG give a loss near that of a guess") {
  const auto name = GENERATE(std::string_view("alexnet"), std::string_view("vgg11"));
  PlacedNetwork net =
      make_model(name).place({.batch = 1, .backend = reference_backend(), .training = false});
  net.initialize(5);
  const Tensor labels({1, 1, 1, 1}, DType::i32);
  Stream stream;
  Context context{stream, false};
  context.targets = labels;
  const auto x = net.x().elements<float>();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = Random(3).normal(i);
  net.forward(context);
  CHECK(net.y().as<double>()[0] == Approx(std::log(1000)).margin(1));
}
