// Layers under splits: the loss and every gradient are those of one rank.
#include "catch.hpp"
#include "support/splits.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// The layer under test between two convolutions, whose gradients tell whether its dx is right.
template <class L>
auto between(typename L::Options options) {
  return [options] {
    Network net({.c = 3, .h = 9, .w = 8});
    net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "first");
    net.add<L>(options, "it");
    if (net.graph().back().shape.h > 1)
      net.add<Conv2D>({.channels = 4, .kernel = 2, .stride = 2, .pad = 1}, "then");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    return net;
  };
}

/// Every way to cut `ranks` ranks or fewer by these axes.
std::vector<Split> all_splits(int ranks, Axis axes) {
  std::vector<Split> all;
  const auto most = [&](Axis a) { return contains(axes, a) ? ranks : 1; };
  for (int b = 1; b <= most(Axis::batch); ++b)
    for (int k = 1; k <= most(Axis::channel); ++k)
      for (int c = 1; c <= most(Axis::input); ++c)
        for (int h = 1; h <= most(Axis::height); ++h)
          for (int w = 1; w <= most(Axis::width); ++w)
            if (b * k * c * h * w <= ranks) all.push_back({b, k, c, h, w});
  return all;
}

/// Checks all legal splits of the layer "it".
template <class Build>
void check_all(Build&& build, double tolerance = 1e-10, const StepOn& base = {}) {
  const Whole alone = step_on(1, build, base);
  int legal = 0;
  for (const int ranks : {2, 3, 4, 6, 8}) {
    const Network net = build();
    for (const Split& split : all_splits(ranks, net.graph()[2].layer->splits())) {
      if (split.ways() != ranks && split.ways() != ranks - 1) continue;
      StepOn o = base;
      o.splits["it"] = split;
      INFO(ranks << " ranks, " << split.text());
      Whole whole;
      try {
        whole = step_on(ranks, build, o);
      } catch (const Error& e) {
        INFO(e.what());
        CHECK_THAT(e.what(), ContainsSubstring("it (") && ContainsSubstring("split"));
        continue;
      }
      ++legal;
      std::string where;
      const double d = difference(alone, whole, &where);
      INFO(where);
      CHECK(d < tolerance);
    }
  }
  CHECK(legal >= 10);
}

}  // namespace

TEST_CASE("Conv2D under every split equals one rank") {
  check_all(between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}));
}

TEST_CASE("Linear under every split equals one rank") {
  check_all(between<Linear>({.features = 7}));
}
