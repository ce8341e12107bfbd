// Networks that are placed for inference with fusion: batch norm goes into the weights before it,
// sums and activations into kernels. They answer as layers by themselves do.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"

#include <lamina/kernels/instruction_set.hpp>
#include <lamina/network/fusion.hpp>
#include <lamina/train/targets.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

using namespace lamina;
using namespace lamina::test;

namespace {

/// To these no way takes longer than another. How much bf16 rounds in a whole network depends on
/// the ways that its kernels take, and those on the clock.
class EqualTimes final : public Verdicts {
 public:
  std::optional<double> find(const std::string& what) override {
    return what.find(": seconds") == what.npos ? Verdicts::find(what) : std::optional(1.0);
  }
};

/// To these one way takes the least time.
class Fastest final : public Verdicts {
 public:
  explicit Fastest(std::string way) : way_(std::move(way)) {}
  std::optional<double> find(const std::string& what) override {
    if (what.find(": seconds") == what.npos) return Verdicts::find(what);
    return what.find(way_) == what.npos ? 1.0 : 0.5;
  }

 private:
  std::string way_;
};

std::shared_ptr<const Backend> backend_of(DType dtype) {
  if (dtype == DType::f64 || !has_onednn()) return reference_backend();
  if (!is_narrow(dtype)) return onednn_backend({.mixed = true});
  return onednn_backend({.mixed = true, .verdicts = std::make_shared<EqualTimes>()});
}

/// Values that no layer starts with: factors and variances around 1, all else around 0.
void disturb(PlacedNetwork& net, std::uint64_t seed = 5) {
  for (const NamedParameter& n : net.parameters()) {
    const Parameter& p = *n.parameter;
    const Random random(seed, key_of(n.name));
    const bool positive = n.name.ends_with("running_var") || p.initial.value == 1;
    const Tensor plain(p.form.shape, p.form.dtype);
    visit(p.form.dtype, [&]<Floating T>(T) {
      for_runs(p.block, {0, p.block.size()}, Box::of(p.whole), p.block,
               [&](std::int64_t from, std::int64_t to, std::int64_t length) {
                 for (std::int64_t i = 0; i < length; ++i) {
                   const double v = random.normal(std::uint64_t(from + i));
                   plain.as<T>()[to + i] = T(positive ? std::exp(v / 2) : v / 5);
                 }
               });
    });
    net.set_value(p, plain);
  }
}

/// What this rank's part of the network says to random samples: behind its last layer, or before a
/// loss.
std::vector<double> answer(PlacedNetwork& net, std::uint64_t seed = 1) {
  const Form form{net.x().shape, DType::f32, {}};
  const Tensor x(form.shape, DType::f32);
  const Random random(seed);
  const std::int64_t first = net.rows().begin * form.shape.sample();
  for (std::int64_t i = 0; i < form.shape.size(); ++i)
    x.as<float>()[i] = float(random.normal(std::uint64_t(first + i)));
  const Backend& backend = *net.placing().backend;
  if (form.shape.n > 0) backend.copy(x, net.x());
  Stream stream;
  Context context{.stream = stream, .training = false};
  const Step& last = net.steps().back();
  std::optional<Targets> targets;
  if (last.layer->is_loss()) context.targets = targets.emplace(net).move(stream);
  net.forward(context);
  stream.wait();
  const View& found = last.layer->is_loss() ? last.buffers.x.at(0) : net.y();
  if (found.shape.size() == 0) return {};  // this rank has no part of it
  const Tensor y(found.shape, wide(found.dtype));
  backend.copy(found, y);
  return numbers(y);
}

/// Residuals, of which one adds what a third layer reads later; norms behind a convolution without
/// bias, one with bias and groups, and a linear layer; a norm that stands alone, one behind a sum,
/// and one that two layers read.
Network normed() {
  Network net({.c = 3, .h = 12, .w = 12});
  Node x = net.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1, .bias = false}, "a");
  x = x.add<BatchNorm>({}, "a_norm").add<ReLU>();
  Node y = x.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1, .groups = 2}, "b")
               .add<BatchNorm>({.epsilon = 0.1}, "b_norm")
               .add<LeakyReLU>({.slope = 0.3});
  y = y.add<Conv2D>({.channels = 16, .kernel = 1, .bias = false}, "c").add<BatchNorm>({}, "c_norm");
  y = net.join<Add>({x, y}, {}, "sum").add<ReLU>();  // x is read again by "later"
  Node z = y.add<Conv2D>({.channels = 16, .kernel = 3, .pad = 1}, "d1");
  z = z.add<Conv2D>({.channels = 16, .kernel = 1}, "d").add<BatchNorm>({.affine = false}, "d_norm");
  z = net.join<Add>({y, z}, {}, "sum2").add<ReLU>();
  const Node later = net.join<Concat>({x, z}, {}, "later");
  later.add<BatchNorm>({}, "alone")
      .add<MaxPool2D>({.window = 2})
      .add<Linear>({.features = 10}, "e")
      .add<BatchNorm>({}, "e_norm")
      .add<Tanh>()
      .add<Linear>({.features = 6}, "f");
  return net;
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i])), largest = std::max(largest, std::abs(b[i]));
  for (const double v : a) CHECK(std::isfinite(v));
  return worst / largest;
}

PlaceOptions inference(DType dtype, bool fuse, std::int64_t batch = 3) {
  return {.batch = batch,
          .backend = backend_of(dtype),
          .dtype = dtype,
          .training = false,
          .fuse = fuse};
}

}  // namespace

TEST_CASE("in inference weights absorb the batch norm behind them") {
  const Network net = normed();
  PlaceOptions o = inference(DType::f64, true);
  const auto absorbed = [&] {
    std::vector<std::string> names;
    const Fusion fusion = plan_fusion(net, o);
    for (std::size_t v = 0; v < net.graph().size(); ++v)
      if (const int by = fusion.vertices[v].absorbed_by;
          by >= 0 && net.graph()[v].layer->type() == "BatchNorm")
        names.push_back(text(net.graph()[v].name, " in ", net.graph()[std::size_t(by)].name));
    return names;
  };
  CHECK(absorbed() == std::vector<std::string>{"a_norm in a", "b_norm in b", "c_norm in c",
                                               "d_norm in d", "e_norm in e"});
  o.training = true;
  CHECK(absorbed().empty());
}

TEST_CASE("a fused network answers as layers by themselves do") {
  const Network net = normed();
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-4}, {DType::bf16, 0.05}}) {
    INFO(name(dtype));
    PlacedNetwork plain = net.place(inference(dtype, false)),
                  fused = net.place(inference(dtype, true));
    for (PlacedNetwork* n : {&plain, &fused}) n->initialize(1), disturb(*n);
    CHECK(apart(answer(fused), answer(plain)) < tolerance);
    CHECK(apart(answer(fused, 2), answer(plain, 2)) < tolerance);
    // Parameters are what they were, under their names.
    CHECK(weights(fused) == weights(plain));
    for (PlacedNetwork* n : {&plain, &fused}) disturb(*n, 6);
    CHECK(apart(answer(fused), answer(plain)) < tolerance);
  }
}

TEST_CASE("fused models answer as layers by themselves do") {
  const auto check_model = [](const char* name, ModelOptions o, DType dtype, double tolerance) {
    INFO(name);
    const Network net = make_model(name, o);
    PlacedNetwork plain = net.place(inference(dtype, false)),
                  fused = net.place(inference(dtype, true));
    for (PlacedNetwork* n : {&plain, &fused}) n->initialize(1);
    CHECK(apart(answer(fused), answer(plain)) < tolerance);
  };
  const ModelOptions small{.classes = 10, .input = {.c = 3, .h = 32, .w = 32}};
  check_model("resnet20", small, DType::f64, 1e-12);
  check_model("resnet20", small, DType::f32, 1e-4);
  check_model("resnet18", small, DType::f32, 1e-4);
  check_model("resnet50", small, DType::f32, 1e-4);
  check_model("lenet", {}, DType::f32, 1e-4);
  check_model("alexnet", {.classes = 10, .width = 0.25}, DType::f32, 1e-4);
}

TEST_CASE("a fused network takes another one's new parameters when it is refreshed") {
  const Network net = normed();
  PlaceOptions o = inference(DType::f32, false);
  o.training = true;
  PlacedNetwork source = net.place(o);
  source.initialize(3);
  o = inference(DType::f32, true);
  o.parameters_of = &source;
  PlacedNetwork fused = net.place(o);
  PlacedNetwork plain = net.place(inference(DType::f32, false));
  for (const std::uint64_t seed : {1, 2}) {
    plain.initialize(3);
    disturb(source, seed), disturb(plain, seed);
    fused.refresh();
    CHECK(apart(answer(fused), answer(plain)) < 1e-4);
  }
}

TEST_CASE("a fused network computes with the values that are set") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(name(dtype));
    const PlaceOptions o = inference(dtype, true);  // one back end, which takes the same ways twice
    PlacedNetwork again = normed().place(o), once = normed().place(o);
    disturb(again, 5);
    const std::vector<double> before = answer(again);
    disturb(again, 6), disturb(once, 6);
    const std::vector<double> after = answer(again);
    CHECK(after == answer(once));
    CHECK(after != before);
  }
}

TEST_CASE("on AVX2 weights that stay are transformed for Winograd once", "[isa]") {
  if (!has_onednn() || instruction_set() != InstructionSet::avx2) {
    WARN("oneDNN does not compute by AVX2: nothing to test");
    return;
  }
  const Network net = normed();
  const std::string way = GENERATE("lamina:winograd_once", "lamina:winograd_2x2_once");
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-4}, {DType::bf16, 0.05}}) {
    INFO(way << ' ' << name(dtype));
    PlacedNetwork plain = net.place(inference(dtype, false, 1));
    PlaceOptions o = inference(dtype, true, 1);
    o.backend = onednn_backend({.verdicts = std::make_shared<Fastest>(way)});
    PlacedNetwork fused = net.place(o);
    std::string prepared;
    for (const Step& s : fused.steps())
      if (s.placement.algorithm.find(way) != std::string::npos) prepared += s.name;
    CHECK(prepared == "d1");  // a has images of three channels, b groups
    for (const std::uint64_t seed : {5, 6}) {
      for (PlacedNetwork* n : {&plain, &fused}) n->initialize(1), disturb(*n, seed);
      CHECK(apart(answer(fused), answer(plain)) < tolerance);
      CHECK(weights(fused) == weights(plain));
    }
  }
}

TEST_CASE("fused networks answer alike under every plan") {
  for (const int ranks : {2, 4}) {
    std::uint64_t draw = 0;
    for (int trial = 0; trial < 6; ++trial) {
      const Random random(std::uint64_t(17 + ranks));
      const Network net = trial % 2 ? thin("resnet20") : normed();
      std::vector<Split> splits = random_plan(net, ranks, 4, random, draw);
      if (trial == 0) splits = {};  // samples over all ranks
      run_ranks(ranks, [&](World& world) {
        set_threads(1);
        const DType dtype = trial < 3 ? DType::f64 : DType::f32;
        PlaceOptions o = inference(dtype, false, 4);
        o.backend = dtype == DType::f32 && has_onednn() ? onednn_backend() : reference_backend();
        o.ranks = world, o.splits = splits;
        PlacedNetwork plain = net.place(o);
        o.fuse = true;
        PlacedNetwork fused = net.place(o);
        for (PlacedNetwork* n : {&plain, &fused}) n->initialize(1), disturb(*n);
        const std::vector<double> a = answer(fused), b = answer(plain);
        check(a.size() == b.size(), "expected answers of the same size");
        double worst = 0, largest = 1e-30;
        for (std::size_t i = 0; i < a.size(); ++i)
          worst = std::max(worst, std::abs(a[i] - b[i])),
          largest = std::max(largest, std::abs(b[i]));
        check(worst < (dtype == DType::f64 ? 1e-11 : 1e-4) * largest, "apart by ", worst / largest);
      });
    }
  }
}

// Weights that are kept as constants, where kernels take them in another type or layout, have the
// bias beside them.
TEST_CASE("where ranks add up y a bias counts once in inference, too", "[isa]") {
  Network net({.c = 64, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 32, .kernel = 3, .pad = 1}, "conv").add<Linear>({.features = 5});
  const auto begin = [](PlacedNetwork& placed) {
    placed.initialize(1);
    for (const NamedParameter& n : placed.parameters()) {
      if (!n.name.ends_with("bias")) continue;
      const Tensor large(n.parameter->form.shape, n.parameter->form.dtype);
      visit(large.view().dtype,
            [&]<Floating T>(T) { std::fill_n(large.as<T>(), large.view().shape.size(), T(3)); });
      placed.set_value(*n.parameter, large);
    }
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(name(dtype));
    PlacedNetwork alone = net.place(inference(dtype, false));
    begin(alone);
    const std::vector<double> want = answer(alone);
    for (const bool fuse : {false, true}) {
      std::vector<double> got[2];
      run_ranks(2, [&](World& world) {
        set_threads(1);
        PlaceOptions o = inference(dtype, fuse);
        o.ranks = world, o.splits = {{.batch = 2}, {.input = 2}, {.input = 2}};
        PlacedNetwork split = net.place(o);
        begin(split);
        got[world.rank()] = answer(split);
      });
      for (const auto& values : got)
        CHECK(apart(values, want) < (dtype == DType::f32 ? 1e-4 : 0.02));
    }
  }
}

TEST_CASE("what is added is overwritten only where nobody reads it any more") {
  if (!has_onednn()) return;
  const Network net = normed();
  PlaceOptions o = inference(DType::f32, true);
  // Or the clock would say whether a sum belongs to its convolution.
  o.backend = onednn_backend({.verdicts = std::make_shared<EqualTimes>()});
  const PlacedNetwork fused = net.place(o);
  const auto step = [&](const char* name) -> const Step& {
    return *std::ranges::find(fused.steps(), name, &Step::name);
  };
  const Step &c = step("c"), &d = step("d");
  REQUIRE((c.epilogue.add && d.epilogue.add && c.epilogue.scale && c.epilogue.activation));
  CHECK(c.buffers.y.data != c.buffers.x.back().data);  // "later" reads it
  CHECK(c.placement.over_added);
  CHECK((d.buffers.y.data == d.buffers.x.back().data) == d.placement.over_added);
  o.training = true;
  o.fuse = true;
  const PlacedNetwork trained = net.place(o);
  for (const Step& s : trained.steps()) CHECK_FALSE(s.epilogue.scale);
}
