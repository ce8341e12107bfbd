// Gradients of two layers that read the same: the kernel that made it adds them up.
#include "catch.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/lamina.hpp>

#include <algorithm>

using namespace lamina;

namespace {

/// A block as residual networks have it, whose y `readers` layers read.
Network block(int readers) {
  Network net({.c = 3, .h = 6, .w = 5});
  const Node x = net.add<Conv2D>({.channels = 4, .kernel = 3}, "conv");
  net.join<Add>({x.add<BatchNorm>({}, "norm"), x}, {}, "add");
  const Node y = net.add<ReLU>({}, "relu");
  std::vector<Node> all;
  for (int i = 0; i < readers; ++i) all.push_back(y.add<Tanh>());
  net.join<Add>(all, {}, "sum");
  net.add<Linear>({.features = 2});
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

const Step& named(const PlacedNetwork& net, const char* name) {
  return *std::ranges::find(net.steps(), std::string_view(name), &Step::name);
}

}  // namespace

TEST_CASE("batch norm adds up the gradients of two layers that read what it has absorbed") {
  for (const int readers : {2, 3}) {
    CAPTURE(readers);
    const Network net = block(readers);
    const PlacedNetwork placed =
        net.place({.batch = 2, .backend = reference_backend(), .fuse = true});
    REQUIRE(named(placed, "relu").absorbed());
    CHECK(bool(named(placed, "norm").buffers.more) == (readers == 2));
    CHECK(bool(named(placed, "relu").buffers.sum) == (readers == 3));
  }
}
