// Layers that multiply by tiles (AMX) where they are split: blocks with halos, parts of channels
// and of sums, behind and in front of reshards, fused and not.
#include "catch.hpp"
#include "support/splits.hpp"
#include "support/tiles.hpp"

#include <algorithm>
#include <map>
#include <string>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Maps and channels that such kernels are taken for. Nothing in it has a kink, where rounding
/// would turn gradients on and off.
Network tiled() {
  Network net({.c = 32, .h = 8, .w = 8});
  const auto norm = [](Node x, const char* name) {
    return x.add<BatchNorm>({.global = true}, name);
  };
  const Node x = net.add<Conv2D>({.channels = 64, .kernel = 3, .pad = 1, .bias = false}, "three");
  Node y = norm(x, "norm").add<Tanh>({}, "tanh").add<Conv2D>({.channels = 128, .kernel = 1}, "one");
  y = norm(y.add<Conv2D>({.channels = 64, .kernel = 3, .pad = 1, .bias = false}, "back"), "last");
  net.join<Add>({y, x}, {}, "add").add<Tanh>({}, "sum");
  net.add<Conv2D>({.channels = 64, .kernel = 1, .stride = 2}, "strided");
  net.add<Linear>({.features = 64}, "fc");
  net.add<Linear>({.features = 5}, "out");
  net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
  return net;
}

struct Result {
  Whole whole;
  std::map<std::string, std::string> algorithms;  ///< by layer, of rank 0
};

Result run(int ranks, const StepOn& o) {
  Result result;
  std::mutex mutex;
  run_ranks(ranks, [&](World& world) {
    const PlacedNetwork placed = run_step(tiled(), o, world, result.whole, mutex);
    if (world.rank() > 0) return;
    for (const Step& s : placed.steps()) result.algorithms[s.name] = s.placement.algorithm;
  });
  return result;
}

bool by_tiles(const Result& r, const std::string& layer, Pass pass) {
  return algorithm_of(r.algorithms.at(layer), pass).find("lamina:tiles") != std::string::npos;
}

}  // namespace

TEST_CASE("layers that multiply by tiles give under every split what they give whole", "[host]") {
  if (!tiles_available()) return;
  const std::vector<std::string> convs = {"three", "one", "back", "strided"};
  const bool fuse = GENERATE(false, true);
  const StepOn base{.backend = "onednn", .dtype = DType::bf16, .batch = 40, .fuse = fuse};
  const Result whole = run(1, base);
  for (const std::string& name : convs)
    for (const Pass pass : {Pass::forward, Pass::input_grad}) CHECK(by_tiles(whole, name, pass));
  std::string where;
  const Whole slow = run(1, {.dtype = DType::bf16, .batch = 40}).whole;
  CHECK(difference(slow, whole.whole, &where) < 0.02);
  for (const int ranks : {2, 3})
    for (const Split& split :
         {Split{.batch = ranks}, Split{.channel = ranks}, Split{.input = ranks},
          Split{.height = ranks}, Split{.width = ranks}}) {
      StepOn o = base;
      for (const std::string& name : convs) o.splits[name] = split;
      if (split.channel > 1 || split.input > 1) o.splits["fc"] = split;
      const Result parts = run(ranks, o);
      const double apart = difference(whole.whole, parts.whole, &where);
      CAPTURE(fuse, split.text(), where);
      CHECK(apart < (split.batch > 1 ? 1e-5 : 0.03));
      if (ranks == 3 || split.input > 1) continue;  // their parts are not of 32 channels
      for (const std::string& name : convs)
        for (const Pass pass : {Pass::forward, Pass::input_grad})
          CHECK(by_tiles(parts, name, pass));
    }
}
