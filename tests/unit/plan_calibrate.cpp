// Calibration: which layers are measured, on one rank and on two, and what the cache does with it.
#include "../../src/machine/cache.hpp"
#include "catch.hpp"
#include "support/cache_folder.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/plan.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

using namespace lamina;
using lamina::test::content;

namespace {

Cluster cluster_of(int devices) {
  const DeviceModel device{.name = "made up",
                           .memory = 1e12,
                           .bandwidth = 1e9,
                           .flops = {{.dtype = DType::f32, .gemm = 1e9, .conv = 2e9}},
                           .launch = 1e-6};
  return {.name = "made up",
          .nodes = {{1, device}},
          .devices_per_node = devices,
          .inside = {1e-5, 1e9},
          .across = {1e-5, 1e9}};
}

/// Two blocks that are alike, of a convolution with an activation and a sum each.
Network blocks() {
  Network net({.c = 4, .h = 8, .w = 8});
  Node x = net.input();
  for (const char* name : {"a", "b"}) {
    const Node y = x.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, text(name, ".conv"))
                       .add<BatchNorm>({}, text(name, ".bn"))
                       .add<ReLU>({}, text(name, ".relu"));
    x = net.join<Add>({x, y}, {}, text(name, ".sum"));
  }
  x.add<Linear>({.features = 6}, "fc").add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

PlaceOptions placing(std::int64_t batch = 4) {
  return {.batch = batch, .backend = reference_backend()};
}

std::vector<Split> under(std::string_view plan, const Network& net, int ranks,
                         std::int64_t batch = 4) {
  return splits_of(decide(built_in_plan(plan, net, batch, ranks), net, batch, true));
}

struct Folder : lamina::test::CacheFolder {
  std::vector<std::string> files() const {
    std::vector<std::string> all;
    if (!std::filesystem::exists(path)) return all;
    for (const auto& f : std::filesystem::directory_iterator(path))
      if (f.path().filename().string().starts_with("layers-")) all.push_back(f.path().string());
    return all;
  }
};

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::trunc) << content;
}

/// What standard error is told meanwhile.
class Told {
 public:
  Told() : before_(dup(2)) {
    std::fflush(stderr);
    const int file = mkstemp(name_);
    dup2(file, 2), close(file);
  }
  std::string text() {
    restore();
    return content(name_);
  }
  ~Told() {
    restore();
    unlink(name_);
  }

 private:
  void restore() {
    if (before_ < 0) return;
    std::fflush(stderr);
    dup2(before_, 2), close(before_);
    before_ = -1;
  }
  int before_;
  char name_[32] = "/tmp/lamina-told-XXXXXX";
};

MeasuredTimes made_up(double seconds, int channels = 4) {
  MeasuredTimes times(cluster_of(1));
  const Conv2D conv({.channels = channels});
  times.add({.layer = local_layer(conv, std::array{Shape{1, 1, 2, 2}}, {}, DType::f32),
             .seconds = {seconds, seconds, seconds},
             .formula = {1, 1, 1}});
  return times;
}

}  // namespace

TEST_CASE("every local layer of a plan is measured once, the same on all ranks") {
  const int ranks = GENERATE(1, 2);
  const std::string plan = GENERATE("data", "spatial", "filter", "owt");
  CAPTURE(ranks, plan);
  const Network net = blocks();
  const auto splits = under(plan, net, ranks);
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    MeasuredTimes times(cluster_of(ranks));
    std::set<std::string> wanted;
    for (std::size_t v = 1; v < net.graph().size(); ++v)
      wanted.insert(local_layer(*net.graph()[v].layer, net.input_shapes(net.graph()[v], 4),
                                splits[v], DType::f32)
                        .text());
    // Two blocks that are alike, and two layers behind them; but in `filter` the first convolution
    // sees all channels of the input, as the second one does of a.sum.
    const int measured = measure_layers(times, net, placing(), splits, world);
    if (measured != int(wanted.size()) || measured != 6) throw Error(text("measured ", measured));
    for (const auto& e : times.entries()) {
      if (wanted.erase(e.layer.text()) != 1) throw Error(text("not wanted: ", e.layer.text()));
      const bool weights = e.layer.type == "Conv2D" || e.layer.type == "Linear";
      const bool runs = e.seconds.forward > 0 && (e.seconds.weight_grad > 0 || !weights) &&
                        (e.seconds.input_grad > 0 || e.layer.type == "Add");
      if (!runs) throw Error(text("took nothing: ", e.layer.text()));
    }
    // Nothing of it is new any more, and nothing changes.
    const std::string before = measured_json(times);
    if (measure_layers(times, net, placing(), splits, world) != 0) throw Error("measured again");
    if (measured_json(times) != before) throw Error("changed");
    found[std::size_t(world.rank())] = before;
  });
  for (const std::string& f : found) CHECK(f == found[0]);
}

TEST_CASE("the gradient of an input that nobody wants is not measured, until somebody does") {
  const auto conv_of = [](Network net) {
    net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv");
    net.add<Linear>({.features = 6}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
  const Network first = conv_of(Network({.c = 4, .h = 8, .w = 8}));
  Network second({.c = 4, .h = 8, .w = 8});
  second.add<Conv2D>({.channels = 4, .kernel = 1}, "before");
  second = conv_of(std::move(second));
  MeasuredTimes times(cluster_of(1));
  const World world;
  const auto conv = [&] {
    return times.find(
        local_layer(*first.graph()[1].layer, std::array{Shape{4, 4, 8, 8}}, {}, DType::f32));
  };
  CHECK(measure_layers(times, first, placing(), under("data", first, 1), world) == 3);
  REQUIRE(conv());
  CHECK(conv()->seconds.input_grad < 0);
  const double forward = conv()->seconds.forward;
  CHECK(measure_layers(times, second, placing(), under("data", second, 1), world) == 2);
  CHECK(conv()->seconds.input_grad > 0);
  CHECK(conv()->seconds.forward == forward);
}

TEST_CASE("calibration measures what the best plan uses, and a second one nothing") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const Folder folder;
  const Network net = blocks();
  const UpdateRule rule{.momentum = 0.9};
  std::vector<int> wrong(static_cast<std::size_t>(ranks));
  for (const bool again : {false, true}) {
    run_ranks(ranks, [&](World& world) {
      const Calibration c =
          calibrate(net, placing(), rule, world, cluster_of(ranks), CalibrateOptions{});
      const FoundPlan best = find_plan(net, placing(), rule, c.cluster, ranks, {}, c.times);
      const auto knows = [&](std::size_t v) {
        const auto& vertex = net.graph()[v];
        return c.times->find(local_layer(*vertex.layer, net.input_shapes(vertex, 4),
                                         best.best.splits[v], DType::f32)) != nullptr;
      };
      int& mine = wrong[std::size_t(world.rank())];
      for (std::size_t v = 1; v < net.graph().size(); ++v) mine += !knows(v);
      mine += !c.settled;
      mine += again ? c.measured != 0 : c.measured < 6;
      mine += std::ranges::none_of(c.times->updates(),
                                   [](const auto& u) { return u.first.starts_with("sgd 1 f32 "); });
    });
    for (const int w : wrong) CHECK(w == 0);
    CHECK(folder.files().size() == 1);
  }
}

TEST_CASE("calibration without time measures no layers, and says that it is not settled") {
  const Folder folder;
  const World world;
  const Calibration c =
      calibrate(blocks(), placing(), {.momentum = 0.9}, world, cluster_of(1), {.seconds = 0});
  CHECK(c.measured == 0);
  CHECK(c.times->entries().empty());
  CHECK_FALSE(c.settled);
}

TEST_CASE("what was measured is kept, and nothing of it is lost") {
  const Folder folder;
  const auto backend = reference_backend();
  const World world;
  const auto load = [&] {
    MeasuredTimes times(cluster_of(1));
    load_measured(times, world, *backend);
    return measured_json(times);
  };
  const std::string nothing = measured_json(MeasuredTimes(cluster_of(1)));
  CHECK(load() == nothing);
  keep_measured(made_up(1), world, *backend);
  CHECK(load() == measured_json(made_up(1)));
  // Another program's layers stay, and what was kept first of a layer does.
  keep_measured(made_up(2, 5), world, *backend);
  MeasuredTimes all = made_up(2, 5);
  const MeasuredTimes first = made_up(1);
  all.add(first.entries()[0]);
  CHECK(load() == measured_json(all));

  // Unlike threads, unlike files.
  const int before = threads();
  set_threads(before + 1);
  CHECK(load() == nothing);
  set_threads(before);
  CHECK(load() != nothing);
  run_ranks(2, [&](World& pair) {
    MeasuredTimes times(cluster_of(2));
    load_measured(times, pair, *backend);
    if (!times.entries().empty()) throw Error("times of one rank served two");
  });

  setenv("LAMINA_CACHE", "0", 1);
  keep_measured(made_up(1), world, *backend);
  CHECK(load() == nothing);
}

TEST_CASE("a damaged file of measured times is named in one line, and measured again") {
  const Folder folder;
  const auto backend = reference_backend();
  const World world;
  keep_measured(made_up(1), world, *backend);
  REQUIRE(folder.files().size() == 1);
  const std::string path = folder.files()[0], good = content(path);
  const auto load = [&](std::string& told) {
    MeasuredTimes times(cluster_of(1));
    Told error;
    load_measured(times, world, *backend);
    told = error.text();
    return times.entries().size();
  };
  std::string told;
  CHECK(load(told) == 1);
  CHECK(told.empty());

  std::string negative = good;
  negative.replace(negative.find("\"seconds\": 1.0"), 14, "\"seconds\": -1.");
  for (const std::string& bad : {good.substr(0, good.size() / 2), std::string("{}"), "x" + good,
                                 std::string("\0\n\xff", 3), negative}) {
    write(path, bad);
    CHECK(load(told) == 0);
    CHECK_THAT(told, ContainsSubstring("lamina: warning: " + path + ": ") &&
                         ContainsSubstring("measured again"));
    CHECK(std::count(told.begin(), told.end(), '\n') == 1);
    keep_measured(made_up(3), world, *backend);
    CHECK(load(told) == 1);
    CHECK(told.empty());
  }
}
