// One description, many instances: a network that is placed several times at once, for training and
// for inference, with other batches, on other ranks, under other splits, with the same parameters.
#include "support/peek.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <lamina/train/hand_over.hpp>

#include <filesystem>

using namespace lamina;
using namespace lamina::test;

namespace {

/// With a name for each layer, all kinds of parameters, and channels that divide unevenly.
Network layers(bool global, bool loss) {
  Network net({.c = 3, .h = 8, .w = 8});
  net.add<Conv2D>({.channels = 18, .kernel = 3, .pad = 1, .bias = false}, "conv");
  net.add<BatchNorm>({.global = global}, "norm");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 10}, "fc1");
  net.add<Tanh>({}, "tanh");
  net.add<Linear>({.features = 4}, "fc2");
  if (loss)
    net.add<SoftmaxCrossEntropy>({}, "loss");
  else
    net.add<Softmax>({}, "softmax");
  return net;
}

struct As {
  std::int64_t batch = 6;
  Communicator ranks = {};
  std::map<std::string, Split> splits = {};
  std::string backend = "reference";
  DType dtype = DType::f64;
};

PlaceOptions placing(const Network& net, const As& as) {
  std::vector<Split> splits;
  for (const auto& v : net.graph()) {
    const auto it = as.splits.find(v.name);
    splits.push_back(it != as.splits.end() ? it->second : input_split(as.batch, as.ranks.size()));
  }
  return {.batch = as.batch,
          .backend = make_backend(as.backend, as.dtype),
          .ranks = as.ranks,
          .splits = splits,
          .dtype = as.dtype};
}

/// As `of` has its parameters, for inference.
PlacedNetwork inference(const PlacedNetwork& of, const As& as, bool global) {
  const Network net = layers(global, false);
  PlaceOptions o = placing(net, as);
  o.training = false, o.parameters_of = &of;
  return net.place(std::move(o));
}

/// The samples `first`, ... of an endless set.
void load(const PlacedNetwork& net, std::int64_t first) {
  const std::int64_t skip = (first + net.rows().begin) * net.network().sample().size();
  const View x = peek(net.x());
  for (std::int64_t i = 0; i < x.shape.size(); ++i) {
    const double v = Random(1).normal(std::uint64_t(skip + i));
    if (x.dtype == DType::f64)
      x.as<double>()[i] = v;
    else
      x.as<float>()[i] = float(v);
  }
}

void train(PlacedNetwork& net, const Optimizer& optimizer, int steps) {
  Stream stream;
  Targets labels(net);
  for (int step = 0; step < steps; ++step) {
    load(net, step * net.placing().batch);
    const auto loaded = peek(labels.loaded()).elements<std::int32_t>();
    for (std::size_t i = 0; i < loaded.size(); ++i)
      loaded[i] = std::int32_t((net.rows().begin + std::int64_t(i) + step) % 4);
    Context context{.stream = stream, .seed = 5, .step = step, .targets = labels.move(stream)};
    net.forward(context), net.backward(context);
    optimizer.update(net, stream, 0.05, step + 1);
  }
}

/// Of `rows` samples, in batches; on a rank that has a part of them only what it has.
std::vector<double> probabilities(PlacedNetwork& net, std::int64_t rows) {
  Stream stream;
  Context context{.stream = stream, .training = false};
  std::vector<double> all(std::size_t(4 * rows));
  const Tensor plain(net.y().shape, net.y().dtype);
  for (std::int64_t first = 0; first < rows; first += net.placing().batch) {
    load(net, first);
    net.forward(context);
    net.placing().backend->copy(net.y(), plain);
    for (std::int64_t i = 0; i < 4 * net.rows().size; ++i)
      all[std::size_t(4 * (first + net.rows().begin) + i)] =
          plain.view().dtype == DType::f64 ? plain.as<double>()[i] : double(plain.as<float>()[i]);
  }
  return all;
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

const Parameter& parameter(const PlacedNetwork& net, const std::string& name) {
  for (const auto& n : net.parameters())
    if (n.name == name) return *n.parameter;
  throw Error(name);
}

}  // namespace

TEST_CASE("instances of one network go their own ways") {
  const Optimizer sgd = SGD{.rate = 0.05, .momentum = 0.9};
  const auto weights_after = [&](PlacedNetwork& net, int steps) {
    net.initialize(3);
    const Tensor states = sgd.attach(net);
    train(net, sgd, steps);
    return weights(net);
  };
  const auto alone = [&](std::int64_t batch, int steps) {
    const Network net = layers(false, true);
    PlacedNetwork placed = net.place(placing(net, {.batch = batch}));
    return weights_after(placed, steps);
  };
  // Two at once, their steps in turns, of a description that has gone and was changed before.
  std::vector<PlacedNetwork> two;
  {
    Network net = layers(false, true);
    two.push_back(net.place(placing(net, {.batch = 6})));
    two.push_back(net.place(placing(net, {.batch = 9})));
    net.add<ReLU>();
    CHECK(two[0].network().graph().size() + 1 == net.graph().size());
  }
  std::vector<Tensor> states;
  for (PlacedNetwork& net : two) net.initialize(3), states.push_back(sgd.attach(net));
  Stream stream;
  for (int step = 0; step < 4; ++step)
    for (PlacedNetwork& net : two) {
      load(net, step * net.placing().batch);
      const Targets labels(net);
      const auto loaded = peek(labels.loaded()).elements<std::int32_t>();
      for (std::size_t i = 0; i < loaded.size(); ++i) loaded[i] = std::int32_t((int(i) + step) % 4);
      Context context{.stream = stream, .seed = 5, .step = step, .targets = labels.loaded()};
      net.forward(context), net.backward(context);
      sgd.update(net, stream, 0.05, step + 1);
    }
  CHECK(weights(two[0]) == alone(6, 4));
  CHECK(weights(two[1]) == alone(9, 4));
  CHECK(weights(two[0]) != weights(two[1]));
}

TEST_CASE("a network for inference has the memory of the one that is trained") {
  const std::string backend = GENERATE("reference", "onednn");
  const DType dtype = backend == "onednn" ? DType::f32 : DType::f64;
  const Network net = layers(true, true);
  const Optimizer adam = Adam{.rate = 0.01};
  std::optional<PlacedNetwork> training =
      net.place(placing(net, {.backend = backend, .dtype = dtype}));
  training->initialize(3);
  const Tensor states = adam.attach(*training);
  PlacedNetwork one = inference(*training, {.batch = 1, .backend = backend, .dtype = dtype}, true);
  PlacedNetwork ten = inference(*training, {.batch = 10, .backend = backend, .dtype = dtype}, true);
  for (const PlacedNetwork* n : {&one, &ten})
    for (const char* name : {"fc1.bias", "norm.running_mean", "norm.weight"})
      CHECK(parameter(*n, name).value.data == parameter(*training, name).value.data);
  if (backend == "reference") {
    CHECK(one.memory().parameters == 0);
    CHECK(ten.memory().activations > one.memory().activations);
  }
  const auto before = probabilities(ten, 20);
  CHECK(apart(probabilities(one, 20), before) < 1e-6);
  train(*training, adam, 3);
  one.refresh(), ten.refresh();
  const auto after = probabilities(ten, 20);
  CHECK(apart(after, before) > 0.01);
  CHECK(apart(probabilities(one, 20), after) < 1e-6);

  // The same from a file.
  const std::string path = std::filesystem::temp_directory_path() / text("instances.", getpid());
  save_checkpoint(path, *training, {});
  const Network layers_of_file = layers(true, false);
  PlaceOptions o = placing(layers_of_file, {.batch = 10, .backend = backend, .dtype = dtype});
  o.training = false;
  PlacedNetwork loaded = layers_of_file.place(std::move(o));
  load_parameters(path, loaded);
  std::filesystem::remove(path);
  CHECK(apart(probabilities(loaded, 20), after) < 1e-6);

  training.reset();  // its memory stays
  CHECK(probabilities(ten, 20) == after);
  CHECK_THROWS_WITH(ten.refresh(), "the network whose parameters are taken is gone");
}

TEST_CASE("parameters go from one network to another under other splits, on other ranks") {
  const std::map<std::string, Split> by_channel = {{"conv", {.channel = 3}},
                                                   {"norm", {.channel = 2}},
                                                   {"fc1", {.channel = 3}},
                                                   {"fc2", {.input = 2}}};
  const std::map<std::string, Split> on_one = {{"fc1", {}}, {"fc2", {}}, {"norm", {.height = 2}}};
  const bool global = GENERATE(true, false);
  const std::string backend = GENERATE("reference", "onednn");
  const DType dtype = backend == "onednn" ? DType::f32 : DType::f64;
  const double tolerance = backend == "onednn" ? 1e-5 : 1e-13;
  CAPTURE(global, backend);
  std::mutex mutex;
  std::string wrong;
  run_ranks(3, [&](World& world) {
    set_threads(1);
    const Optimizer sgd = SGD{.rate = 0.05, .momentum = 0.9};
    const std::string path =
        std::filesystem::temp_directory_path() / text("instances.", getpid(), backend);
    int number = 0;
    for (const auto& trained : {std::map<std::string, Split>(), by_channel, on_one}) {
      const Network net = layers(global, true);
      PlacedNetwork training = net.place(
          placing(net, {.ranks = world, .splits = trained, .backend = backend, .dtype = dtype}));
      training.initialize(3);
      const Tensor states = sgd.attach(training);
      std::vector<PlacedNetwork> others;
      for (const auto& splits : {std::map<std::string, Split>(), by_channel, on_one})
        others.push_back(inference(
            training,
            {.batch = 9, .ranks = world, .splits = splits, .backend = backend, .dtype = dtype},
            global));
      // Each rank on its own, with a batch of its own.
      others.push_back(inference(
          training, {.batch = 2 + world.rank(), .backend = backend, .dtype = dtype}, global));
      train(training, sgd, 2);
      save_checkpoint(path, training, {}, world);
      const Network single = layers(global, false);
      PlaceOptions o = placing(single, {.batch = 18, .backend = backend, .dtype = dtype});
      o.training = false;
      PlacedNetwork loaded = single.place(std::move(o));
      load_parameters(path, loaded, true, world);
      const auto expected = probabilities(loaded, 18);
      // One that is made now has them from the start; the others must take them anew.
      others.push_back(inference(
          training,
          {.batch = 9, .ranks = world, .splits = by_channel, .backend = backend, .dtype = dtype},
          global));
      for (std::size_t i = 0; i < others.size(); ++i, ++number) {
        PlacedNetwork& other = others[i];
        const bool together = i != 3;
        for (int twice = 0; twice < 2 && i < 4; ++twice) other.refresh();
        std::vector<double> found = probabilities(other, together ? 18 : 12);
        if (together)
          for (double& v : found) v = world.comm().all_reduce_value(v);
        const std::vector<double> wanted(expected.begin(),
                                         expected.begin() + std::ptrdiff_t(found.size()));
        const double far = apart(found, wanted);
        const std::lock_guard lock(mutex);
        if (!(far < tolerance)) wrong += text("rank ", world.rank(), ", ", number, ": ", far, '\n');
      }
    }
    world.comm().barrier();
    if (world.rank() == 0) std::filesystem::remove(path);
  });
  CHECK(wrong == "");
}

TEST_CASE("parameters that another network does not have are an error") {
  const Network net = layers(true, true);
  PlacedNetwork from = net.place(placing(net, {}));
  const auto error = [&](const Network& other, PlaceOptions o) -> std::string {
    try {
      o.parameters_of = &from;
      other.place(std::move(o));
    } catch (const Error& e) {
      return e.what();
    }
    return {};
  };
  const auto of = [&](const Network& other, DType dtype = DType::f64) {
    PlaceOptions o = placing(other, {.dtype = dtype});
    o.training = false;
    return o;
  };
  CHECK(error(net, of(net)).empty());
  CHECK(error(net, placing(net, {})) ==
        "parameters of another network are for inference only: expected training = false");
  Network more = layers(true, false);
  more.add<Linear>({.features = 4}, "fc3");
  CHECK(error(more, of(more)) == "fc3.weight: the network whose parameters are taken has none");
  Network wider({.c = 3, .h = 9, .w = 8});
  wider.add<Linear>({.features = 10}, "fc1");
  CHECK_THAT(error(wider, of(wider)), ContainsSubstring("fc1.weight is 10x3x9x8 of f64, but in"));
  CHECK_THAT(error(net, of(net, DType::f32)), ContainsSubstring("is 18x3x3x3 of f32, but in"));
  CHECK_THROWS_WITH(from.refresh(), "the network has no parameters of another one");
}

TEST_CASE("another network's parameters are only read, and never in part when they have changed") {
  const Network net = layers(false, true);
  PlacedNetwork from = net.place(placing(net, {}));
  from.initialize(3);
  PlacedNetwork to = inference(from, {.batch = 2}, false);
  const auto before = weights(from);
  CHECK_THROWS_WITH(to.initialize(4), ContainsSubstring("parameters of another one"));
  const std::string path = std::filesystem::temp_directory_path() / text("instances.", getpid());
  save_checkpoint(path, from, {});
  CHECK_THROWS_WITH(load_parameters(path, to), ContainsSubstring("parameters of another one"));
  CHECK(weights(from) == before);
  const auto stale = ContainsSubstring("has changed them: expected refresh()");
  const auto asks_after = [&](auto&& change) {
    probabilities(to, 2);
    change();
    CHECK_THROWS_WITH(probabilities(to, 2), stale);
    to.refresh();
    probabilities(to, 2);
  };
  const Optimizer sgd = SGD{.rate = 0.1};
  const Tensor states = sgd.attach(from);
  asks_after([&] { train(from, sgd, 1); });
  asks_after([&] { from.initialize(5); });
  asks_after([&] { load_parameters(path, from); });
  asks_after([&] { load_checkpoint(path, from); });
  PlacedNetwork other = net.place(placing(net, {}));
  other.initialize(6);
  const Tensor its_states = sgd.attach(other);
  asks_after([&] { hand_over(&other, &from, {}); });
  CHECK(weights(from) == weights(other));
  std::filesystem::remove(path);
}

TEST_CASE("inference takes single samples through batch norm behind linear layers") {
  Network net({.c = 3, .h = 2, .w = 2});
  net.add<Linear>({.features = 4});
  net.add<BatchNorm>({}, "norm");
  PlaceOptions o = placing(net, {.batch = 1});
  CHECK_THROWS_WITH(net.place(o), ContainsSubstring("needs more than one value per channel"));
  o.training = false;
  CHECK_NOTHROW(net.place(o));
}

TEST_CASE("initial values do not depend on threads, nor on how a parameter is cut") {
  Network net({.c = 3, .h = 8, .w = 8});
  net.add<Linear>({.features = 700}, "first");
  net.add<Linear>({.features = 500, .normal = 0.1},
                  "second");  // 350,000 values: for several threads
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const auto drawn = [&](int count, int ranks) {
    std::vector<std::vector<double>> parts(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](World& world) {
      set_threads(count);
      PlaceOptions o = placing(net, {.batch = 6, .ranks = world});
      if (ranks > 1) o.splits = splits_of(decide(built_in_plan("filter", net, 6, ranks), net, 6));
      PlacedNetwork placed = net.place(o);
      placed.initialize(7);
      parts[std::size_t(world.rank())] = weights(placed);
    });
    return parts;
  };
  const auto one = drawn(1, 1)[0];
  CHECK(drawn(2, 1)[0] == one);
  CHECK(drawn(5, 1)[0] == one);
  CHECK(drawn(3, 2) == drawn(1, 2));
  set_threads(default_threads(1));
}

TEST_CASE("drawing initial values leaves gradients clear") {
  const std::string backend = GENERATE("reference", "auto");
  const Network net = layers(true, true);
  PlacedNetwork placed = net.place(placing(net, {.backend = backend, .dtype = DType::f32}));
  placed.initialize(7);
  for (const NamedParameter& n : placed.parameters()) {
    const View& grad = n.parameter->grad;
    if (!grad || grad.space) continue;
    CAPTURE(backend, n.name);
    const auto* const bytes = static_cast<const char*>(grad.data);
    CHECK(std::all_of(bytes, bytes + grad.bytes(), [](char c) { return c == 0; }));
  }
}

TEST_CASE("a network that goes waits for the sums that it has started") {
  // With memory that is given back to the system at once, as large blocks are.
  const Network net = [] {
    Network n({.c = 3, .h = 8, .w = 8});
    n.add<Linear>({.features = 30000}, "large");
    n.add<Linear>({.features = 4});
    n.add<SoftmaxCrossEntropy>({}, "loss");
    return n;
  }();
  run_ranks(2, [&](World& world) {
    for (int i = 0; i < 5; ++i) {
      PlacedNetwork placed = net.place(placing(net, {.batch = 2, .ranks = world}));
      placed.initialize(1);
      Stream stream;
      Targets labels(placed);
      Context context{.stream = stream, .targets = labels.move(stream)};
      placed.forward(context), placed.backward(context);
    }
  });
}

TEST_CASE("a trainer leaves the network as it was, and evaluates with a batch of its own") {
  const auto data = small_data(), validation = small_data(50, false);
  const bool local = GENERATE(true, false);
  const int ranks = GENERATE(1, 2, 3);
  const bool filter = GENERATE(true, false);
  CAPTURE(local, ranks, filter);
  std::vector<Evaluation> found[2];
  std::vector<double> trained[2];
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    for (const bool own : {false, true}) {
      const Network net = local ? local_norm_network() : small_network(true);
      const std::size_t size = net.graph().size();
      TrainerOptions o{.batch = 24, .backend = "reference", .dtype = DType::f64};
      if (own) o.evaluation_batch = 7;
      if (filter)
        o.splits = splits_of(decide(built_in_plan("filter", net, o.batch, ranks), net, o.batch));
      Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9}, o);
      check(net.graph().size() == size, "the network has grown");
      const auto add = [&] {
        const Evaluation e = trainer.evaluate(*validation);
        if (world.rank() == 0) found[own].push_back(e);
      };
      add();
      for (int i = 1; i <= 3; ++i) losses(trainer, *data, 2 * i), add();
      if (world.rank() == 0) trained[own] = weights(trainer.network());
    }
  });
  CHECK(trained[0] == trained[1]);
  REQUIRE(found[0].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(std::abs(found[0][i].loss - found[1][i].loss) < 1e-12);
    CHECK(found[0][i].top1 == found[1][i].top1);
    CHECK(found[1][i].samples == 50);
  }
  CHECK(found[0][3].loss != found[0][0].loss);
}

TEST_CASE("a trainer counts the memory of its evaluation, which allocates nothing in a step") {
  const auto data = small_data(), validation = small_data(60, false);
  World world;
  const Network net = small_network(true);
  const auto memory = [&](std::int64_t evaluation_batch) {
    Trainer trainer(net, world, SGD{}, {.batch = 24, .evaluation_batch = evaluation_batch});
    return trainer.memory();
  };
  const Memory one = memory(0), two = memory(60);
  CHECK(two.parameters >= one.parameters);
  CHECK(two.gradients == one.gradients);
  CHECK(two.activations > 2 * one.activations);
  Trainer trainer(net, world, SGD{.rate = 0.1}, {.batch = 24, .evaluation_batch = 20});
  trainer.evaluate(*validation);
  if (counts_allocations()) CHECK(allocated_by_steps(trainer, *data).largest < most_of_onednn());
}

TEST_CASE("batches that do not fit are named as what they are") {
  std::vector<std::string> errors(2);
  const auto error = [&](TrainerOptions o, bool other = false) {
    run_ranks(2, [&](World& world) {
      TrainerOptions mine = o;
      if (other && world.rank() == 1) mine.evaluation_batch = 8;
      try {
        Trainer(small_network(true), world, SGD{}, mine);
      } catch (const PeerError&) {
        throw;
      } catch (const Error& e) {
        errors[std::size_t(world.rank())] = e.what();
      }
    });
    CHECK(errors[0] == errors[1]);
    return errors[0];
  };
  CHECK(error({.batch = 0}) == "the global batch must be positive, got 0");
  CHECK_THAT(error({.batch = 4, .micro_batch = 1}),
             ContainsSubstring("micro-batch: a global batch"));
  CHECK_THAT(error({.batch = 4, .evaluation_batch = 1}),
             ContainsSubstring("evaluation batch: a global batch of 1"));
  CHECK_THAT(error({.batch = 4}, true), ContainsSubstring("the evaluation batch is 0 on rank 0"));
}
