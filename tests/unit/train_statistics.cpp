// Running statistics of which each rank has its own (local batch norm): resumed trainings, files
// and evaluations, with a trainer and without.
#include "catch.hpp"
#include "support/operands.hpp"
#include "support/peek.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/train/safetensors.hpp>

#include <atomic>

using namespace lamina;
using namespace lamina::test;
using namespace checkpoint_files;

namespace {

constexpr std::int64_t batch = 24;

struct Run {
  int ranks = 1;
  std::map<std::string, Split> splits = {};
  int first = ranks, second = ranks;  ///< how many parts of the batch have statistics of their own
  bool shard = false;
};

const Run runs[] = {
    {2},
    {3},
    {2, {}, 2, 2, true},
    {4, {{"first", {.batch = 2, .channel = 2}}, {"second", {.batch = 2, .height = 2}}}, 2, 2},
    {4, {{"a", {.height = 4}}, {"first", {.height = 2, .width = 2}}, {"c", {.input = 4}}}, 1, 4},
    {3, {{"first", {.batch = 2}}, {"second", {}}, {"loss", {.channel = 3}}}, 2, 1},
};

Trainer trainer(World& world, const Run& run, bool fast = false) {
  const Network net = local_norm_network();
  return {net,
          world,
          SGD{.rate = 0.05, .momentum = 0.9},
          {.batch = batch,
           .backend = fast ? "auto" : "reference",
           .dtype = fast ? DType::f32 : DType::f64,
           .splits = splits_of(net, {.batch = batch, .splits = run.splits}, run.ranks),
           .shard_optimizer = run.shard}};
}

/// Trains up to step `until`, from a checkpoint if there is one, and writes one at the end only.
/// Returns how many statistics went on from their mean.
std::size_t train(const Run& run, bool fast, std::int64_t until, const std::string& from,
                  const std::string& to, bool evaluates = false) {
  const auto data = small_data(), validation = small_data(30, false);
  std::size_t averaged = 0;
  run_ranks(run.ranks, [&](World& world) {
    set_threads(1);
    Trainer t = trainer(world, run, fast);
    std::vector<std::string> names;
    if (!from.empty()) names = t.resume(from);
    Loader loader = t.loader(*data, true);
    while (t.progress().step < until) {
      t.step(loader, 30);
      if (!evaluates) continue;
      t.evaluate(*validation);
      t.save(to);
    }
    t.save(to);
    if (world.rank() == 0) averaged = names.size();
  });
  return averaged;
}

struct Stored {
  std::vector<std::int64_t> dims;
  Values values;
  bool operator==(const Stored&) const = default;
};

std::map<std::string, Stored> tensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Stored> all;
  for (const StoredTensor& t : file.tensors()) {
    auto& [dims, values] = all[t.name];
    dims = t.dims, values.resize(std::size_t(t.size()));
    file.read(t, DType::f64, values.data());
  }
  return all;
}

/// The tensors in which two checkpoints differ by a bit, or that only one has.
std::string differing(const std::string& a, const std::string& b) {
  const auto one = tensors(a), other = tensors(b);
  std::string names;
  for (const auto& [name, values] : one)
    if (!other.contains(name) || other.at(name) != values) append(names, name + ' ');
  for (const auto& [name, values] : other)
    if (!one.contains(name)) append(names, name + ' ');
  return names;
}

/// A rank's samples and labels of the first images of a set, in a network.
Context load(const PlacedNetwork& net, const Targets& labels, const Dataset& data, Stream& stream) {
  Sample sample;
  const Part rows = net.rows();
  const View x = peek(net.x()), loaded = peek(labels.loaded());
  for (std::int64_t i = 0; i < rows.size; ++i) {
    data.read(rows.begin + i, sample);
    const auto size = net.network().sample().size();
    for (std::int64_t k = 0; k < size; ++k)
      x.as<double>()[i * size + k] = sample.pixels[std::size_t(k)] / 255.0 - 0.5;
    loaded.as<std::int32_t>()[i] = sample.label;
  }
  return {.stream = stream, .training = false};
}

}  // namespace

TEST_CASE("a resumed training equals one that never stopped, running statistics included") {
  const Folder folder;
  const bool fast = GENERATE(false, true);
  for (const Run& run : runs) {
    CAPTURE(fast, run.ranks, run.splits.size(), run.shard);
    train(run, fast, 7, "", folder / "whole");
    train(run, fast, 4, "", folder / "part");
    CHECK(train(run, fast, 7, folder / "part", folder / "resumed") == 0);
    CHECK(differing(folder / "whole", folder / "resumed") == "");
    CHECK(read(folder / "whole") == read(folder / "resumed"));
    train(run, fast, 7, "", folder / "evaluated", true);
    CHECK(differing(folder / "whole", folder / "evaluated") == "");
  }
}

TEST_CASE("a checkpoint has the mean of running statistics, and beside it each rank's") {
  const Folder folder;
  for (const Run& run : runs) {
    CAPTURE(run.ranks, run.splits.size());
    train(run, false, 5, "", folder / "saved");
    const auto all = tensors(folder / "saved");
    for (const auto& [layer, parts] : {std::pair("first", run.first), {"second", run.second}})
      for (const char* what : {".running_mean", ".running_var"}) {
        const std::string name = text(layer, what);
        CAPTURE(name);
        REQUIRE(all.contains(name));
        REQUIRE(all.contains("local/" + name) == (parts > 1));
        if (parts == 1) continue;
        const auto& [dims, mean] = all.at(name);
        const auto& [rows, each] = all.at("local/" + name);
        CHECK(rows == std::vector<std::int64_t>{parts, dims[0]});
        Values want(mean.size());
        for (std::size_t i = 0; i < each.size(); ++i) want[i % want.size()] += each[i] / parts;
        CHECK(difference(mean, want) < 1e-14);
        CHECK(difference({each.begin(), each.begin() + dims[0]}, want) > 1e-6);
      }
  }
}

TEST_CASE("running statistics go on from their mean on another number of ranks, which is said") {
  const Folder folder;
  for (const Run& saves : runs) {
    train(saves, false, 4, "", folder / "saved");
    const auto saved = tensors(folder / "saved");
    for (const Run& loads : {Run{1}, Run{2}, Run{3}, runs[3], runs[4]}) {
      CAPTURE(saves.ranks, saves.splits.size(), loads.ranks, loads.splits.size());
      const std::size_t apart =
          2 * (saves.first != loads.first) + 2 * (saves.second != loads.second);
      CHECK(train(loads, false, 0, folder / "saved", folder / "again") == apart);
      const auto again = tensors(folder / "again");
      for (const auto& [name, stored] : saved)
        if (!name.starts_with("local/"))
          CHECK(difference(again.at(name).values, stored.values) < 1e-15);
      CHECK(train(loads, false, 6, folder / "saved", folder / "on") == apart);
      if (apart == 0) {
        train(saves, false, 6, folder / "saved", folder / "there");
        const auto on = tensors(folder / "on");
        for (const auto& [name, stored] : tensors(folder / "there"))
          CHECK(difference(on.at(name).values, stored.values) < 1e-10);
      }
    }
  }
}

TEST_CASE("parameters alone are loaded with the mean of running statistics") {
  const Folder folder;
  train({2}, false, 4, "", folder / "saved");
  const auto saved = tensors(folder / "saved");
  run_ranks(2, [&](World& world) {
    Trainer t = trainer(world, {2});
    PlacedNetwork& net = t.network();
    check(load_parameters(folder / "saved", net, true, world.comm()).empty(), "left over");
    for (const auto& n : net.parameters()) {
      const Tensor plain(n.parameter->form);
      net.placing().backend->copy(n.parameter->value, plain);
      const auto v = plain.elements<double>();
      check(Values(v.begin(), v.end()) == saved.at(n.name).values, n.name, " differs");
    }
  });
}

TEST_CASE("inference takes the same statistics on every rank, in a loop of one's own, too") {
  const Folder folder;
  const auto data = small_data(), other = small_data(batch, false);
  for (const Run& run : runs) {
    CAPTURE(run.ranks, run.splits.size());
    std::vector<Values> found(static_cast<std::size_t>(run.ranks));
    run_ranks(run.ranks, [&](World& world) {
      set_threads(1);
      Trainer t = trainer(world, run);
      PlacedNetwork& net = t.network();
      Loader loader = t.loader(*data, true);
      for (int i = 0; i < 5; ++i) t.step(loader, 30);
      Targets labels(net);
      Context context = load(net, labels, *other, t.stream());
      context.targets = labels.move(t.stream());
      net.forward(context);
      const Outcome o = outcome(net, t.stream());
      const Evaluation e = t.evaluate(*other);
      found[std::size_t(world.rank())] = {o.loss, o.top1, o.top5, o.rows, e.loss, e.top1, e.top5};
      t.save(folder / "saved");
    });
    for (const Values& v : found) CHECK(v == found[0]);  // bit by bit

    World alone;
    Trainer t = trainer(alone, {1});
    PlacedNetwork& net = t.network();
    load_parameters(folder / "saved", net);
    Targets labels(net);
    Context context = load(net, labels, *other, t.stream());
    context.targets = labels.move(t.stream());
    net.forward(context);
    const Outcome o = outcome(net, t.stream());
    const Evaluation e = t.evaluate(*other);
    CHECK(difference({o.loss, o.top1, o.top5, o.rows, e.loss, e.top1, e.top5}, found[0]) < 1e-12);
    CHECK(o.rows == batch);
  }
}

TEST_CASE("a network that is placed for inference sends nothing") {
  struct Counts final : Recorder {
    std::atomic<int> sent = 0;
    void record(const Span& s) override { sent += s.lane == Lane::communication; }
  };
  const auto messages = [](bool training) {
    int sent = 0;
    run_ranks(2, [&](World& world) {
      set_threads(1);
      Network norm({.c = 3, .h = 4, .w = 4});
      norm.add<BatchNorm>({}, "norm");
      PlacedNetwork net = norm.place(
          {.batch = 4, .backend = reference_backend(), .ranks = world, .training = training});
      net.initialize(1);
      Counts counts;
      Stream stream;
      stream.record_to(&counts);
      Context context{.stream = stream, .training = false};
      for (int i = 0; i < 3; ++i) net.forward(context);
      stream.wait();
      if (world.rank() == 0) sent = counts.sent;
    });
    return sent;
  };
  CHECK(messages(false) == 0);
  CHECK(messages(true) == 3);
}

namespace {

/// y = x. Has a value that is not trained, and says nothing of who has the same.
class Keeper final : public Layer {
 public:
  struct Options {};
  explicit Keeper(Options) {}
  std::string_view type() const override { return "Keeper"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape>, const Split&, DType) const override { return {}; }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    placed->kept = {.name = "kept",
                    .dims = {3},
                    .form = {{1, 3, 1, 1}, xs[0].dtype, {}},
                    .trained = false,
                    .replicas = site.along(Axis::batch)};
    Placement p;
    p.output = xs[0], p.inputs = {xs[0]}, p.alias = true;
    p.layer = std::move(placed);
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context&, std::span<const View>, const View&) override {}
    void backward(Context&, std::span<const View>, const View&, const View&,
                  std::span<const View>) override {}
    std::vector<Parameter*> parameters() override { return {&kept}; }
    Parameter kept;
  };
};

}  // namespace

TEST_CASE("what a layer keeps without saying who has the same is taken to be each rank's own") {
  const Folder folder;
  run_ranks(3, [&](World& world) {
    const auto place = [&] {
      Network net({.c = 2});
      net.add<Keeper>({}, "keeper");
      net.add<Linear>({.features = 2}, "fc");
      PlacedNetwork placed =
          net.place({.batch = 3, .backend = reference_backend(), .ranks = world});
      placed.initialize(1);
      return placed;
    };
    const auto kept = [](const PlacedNetwork& net) {
      return peek(net.parameters()[0].parameter->value).elements<float>();
    };
    const PlacedNetwork net = place();
    std::ranges::fill(kept(net), float(world.rank()));
    save_checkpoint(folder / "saved", net, {}, world.comm());
    PlacedNetwork again = place();
    check(load_checkpoint(folder / "saved", again, world.comm()).averaged.empty(), "averaged");
    const float loaded = kept(again)[2];
    check(loaded == float(world.rank()), "rank ", world.rank(), " has ", loaded);
  });
  const auto saved = tensors(folder / "saved");
  CHECK(saved.at("keeper.kept").values == Values{1, 1, 1});
  CHECK(saved.at("local/keeper.kept").values == Values{0, 0, 0, 1, 1, 1, 2, 2, 2});
}
