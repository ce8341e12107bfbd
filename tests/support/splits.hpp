// What the tests of splits share: one step of a network on one rank, and on several under a plan,
// and how far the two are apart; and the test that does so for every split of a layer.
#pragma once

#include "catch.hpp"
#include "support/peek.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/lamina.hpp>

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace lamina::test {

/// One training step: the loss and hits, and every gradient (or running average), whole.
struct Whole {
  std::vector<double> y;
  std::map<std::string, std::vector<double>> parameters;
  int absorbed = 0;  ///< layers
};

struct StepOn {
  /// As make_backend() takes it; "unlike NAME": oneDNN, which every second rank lets choose only
  /// implementations of that name, so that neighbours have unlike layouts; or `unlike_backends`.
  std::string backend = "reference";
  Precision dtype = DType::f64;
  std::int64_t batch = 10;
  std::map<std::string, Split> splits = {};  ///< by layer; all others by batch
  bool training = true;
  int threads = 0;  ///< 0: as many as there are
  bool fuse = false;
  std::vector<bool> recompute = {};
};

/// The reference, and on every second rank oneDNN; on a device that, and the reference on the host.
inline const std::string unlike_backends = "unlike back ends";

/// Whether there are two, and collectives which go by way of the host.
inline bool has_unlike_backends() { return (has_onednn() || on_device()) && !over_device(); }

inline std::shared_ptr<const Backend> backend_of(const StepOn& o, int rank) {
  constexpr std::string_view unlike = "unlike ";
  if (o.backend == unlike_backends) return rank % 2 ? onednn_backend() : reference_backend();
  if (!o.backend.starts_with(unlike)) return make_backend(o.backend, o.dtype);
  return onednn_backend({.only = rank % 2 ? o.backend.substr(unlike.size()) : ""});
}

/// Splits of all vertices of a network.
inline std::vector<Split> splits_of(const Network& net, const StepOn& o, int ranks) {
  std::vector<Split> all;
  for (const auto& v : net.graph()) {
    const auto it = o.splits.find(v.name);
    all.push_back(it != o.splits.end() ? it->second : input_split(o.batch, ranks));
  }
  return all;
}

/// `net` on these ranks, with parameters drawn. `own` is this rank's back end; null: that of `o`.
inline PlacedNetwork place_on(const Network& net, const StepOn& o, const Communicator& ranks,
                              std::shared_ptr<const Backend> own = {}) {
  if (o.threads > 0) set_threads(o.threads);
  PlacedNetwork placed = net.place({.batch = o.batch,
                                    .backend = own ? own : backend_of(o, ranks.rank()),
                                    .ranks = ranks,
                                    .splits = splits_of(net, o, ranks.size()),
                                    .recompute = o.recompute,
                                    .dtype = o.dtype,
                                    .bucket_mb = 1e-4,
                                    .first_bucket_mb = 1e-4,
                                    .fuse = o.fuse});
  placed.initialize(7);
  return placed;
}

/// Runs it for a step and adds this rank's part to `whole`, which all ranks share. The last row is
/// padding.
inline void step_of(PlacedNetwork& placed, const Network& net, const StepOn& o,
                    const Communicator& ranks, Whole& whole, std::mutex& mutex) {
  const Part rows = placed.rows();
  const auto skip = std::size_t(rows.begin * net.sample().size());
  const std::int64_t classes = net.input_shapes(net.graph().back(), 1)[0].c;
  const View x = peek(placed.x());
  for (std::int64_t i = 0; i < x.shape.size(); ++i) {
    const double v = Random(1).normal(skip + std::size_t(i));
    visit(x.dtype, [&]<Floating T>(T) { x.as<T>()[i] = T(v); });
  }
  const Blocks parts =
      Blocks::of({o.batch, 1, 1, 1}, placed.placing().splits.back(), Axis::batch, ranks.size());
  const Part mine = parts.box[std::size_t(ranks.rank())].n;  // of the loss
  const Tensor labels({mine.size, 1, 1, 1}, DType::i32, placed.placing().backend->memory());
  for (std::int64_t i = 0; i < mine.size; ++i)
    peek(labels).as<std::int32_t>()[i] =
        mine.begin + i == o.batch - 1 ? -1 : std::int32_t((mine.begin + i) % classes);
  Stream stream;
  Context context{stream, o.training};
  context.targets = labels;
  placed.forward(context);
  if (o.training) placed.backward(context);

  for (const auto& n : placed.parameters())
    if (o.training) n.parameter->wait(stream);
  const std::lock_guard lock(mutex);
  whole.absorbed = int(std::ranges::count_if(placed.steps(), &Step::absorbed));
  if (placed.steps().back().active()) {
    const auto y = peek(placed.y()).elements<double>();
    whole.y.assign(y.begin(), y.end());
  }
  for (const auto& n : placed.parameters()) {
    if (!o.training) continue;
    const Parameter& p = *n.parameter;
    const View& v = p.trained ? p.grad : p.value;
    const Tensor plain(v.shape, v.dtype);
    placed.placing().backend->copy(v, plain);
    const std::vector<double> values = numbers(plain);
    auto& all = whole.parameters[n.name];
    all.resize(std::size_t(p.whole.size()));
    std::size_t i = 0;
    const Box& b = p.block;
    for (std::int64_t k = b.n.begin; k < b.n.end(); ++k)
      for (std::int64_t c = b.c.begin; c < b.c.end(); ++c)
        for (std::int64_t r = b.h.begin; r < b.h.end(); ++r)
          for (std::int64_t s = b.w.begin; s < b.w.end(); ++s, ++i)
            all[std::size_t(((k * p.whole.c + c) * p.whole.h + r) * p.whole.w + s)] = values[i];
  }
}

/// Both.
inline PlacedNetwork run_step(const Network& net, const StepOn& o, const Communicator& ranks,
                              Whole& whole, std::mutex& mutex,
                              std::shared_ptr<const Backend> own = {}) {
  PlacedNetwork placed = place_on(net, o, ranks, std::move(own));
  step_of(placed, net, o, ranks, whole, mutex);
  return placed;
}

template <class Build>
Whole step_on(int ranks, Build&& build, const StepOn& o) {
  Whole whole;
  std::mutex mutex;
  run_ranks(ranks, [&](World& world) { run_step(build(), o, world, whole, mutex); });
  return whole;
}

/// The largest difference, relative to the largest value of each.
inline double difference(const Whole& a, const Whole& b, std::string* where = nullptr) {
  double worst = 0;
  const auto compare = [&](const std::string& name, const std::vector<double>& x,
                           const std::vector<double>& y) {
    check(x.size() == y.size(), name, ": ", x.size(), " and ", y.size(), " values");
    double scale = 1e-30, largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      scale = std::max(scale, std::abs(x[i]));
      const double d = std::abs(x[i] - y[i]);
      largest = d > largest || std::isnan(d) ? d : largest;
    }
    if (largest / scale > worst || std::isnan(largest)) {
      worst = std::isnan(largest) ? 1e300 : largest / scale;
      if (where) *where = name;
    }
  };
  compare("y", a.y, b.y);
  check(a.parameters.size() == b.parameters.size(), "other parameters");
  for (const auto& [name, x] : a.parameters) compare(name, x, b.parameters.at(name));
  return worst;
}

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
inline std::vector<Split> all_splits(int ranks, Axis axes) {
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

/// Whether no axis has more parts than there are to be cut: what a layer should allow.
inline bool within(const Split& split, const Split& most) {
  return split.batch <= most.batch && split.channel <= most.channel && split.input <= most.input &&
         split.height <= most.height && split.width <= most.width;
}

/// Checks that of all splits of the layer "it" along these axes just those are legal that cut no
/// axis into more parts than `most`, or into more than there are samples; and the values of these.
template <class Build>
void check_all(Build&& build, Split most, double tolerance = 1e-10, const StepOn& base = {},
               const std::vector<int>& on = {2, 3, 4, 6, 8},
               Axis axes = all_but_input | Axis::input) {
  most.batch = int(base.batch);
  const Whole alone = step_on(1, build, base);
  const Network net = build();
  const auto it = std::find_if(net.graph().begin(), net.graph().end(),
                               [](const auto& v) { return v.name == "it"; });
  const std::vector<Shape> xs = net.input_shapes(*it, base.batch);
  for (const int ranks : on)
    for (const Split& split : all_splits(ranks, axes)) {
      if (split.ways() != ranks && split.ways() != ranks - 1) continue;
      INFO(ranks << " ranks, " << split.text());
      const std::string why = why_illegal(*it->layer, xs, split, ranks);
      INFO(why);
      CHECK(why.empty() == within(split, most));
      if (!why.empty()) continue;
      StepOn o = base;
      o.splits["it"] = split;
      std::string where;
      const double d = difference(alone, step_on(ranks, build, o), &where);
      INFO(where);
      CHECK(d < tolerance);
    }
}

}  // namespace lamina::test
