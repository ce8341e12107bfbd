// Mistakes of a training loop of one's own that would train something else than was meant, and
// would not show: each ends in a line that says what was expected.
#include "catch.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <array>
#include <functional>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::int64_t batch = 24;

/// A network with its states, and one batch for it.
struct Loop {
  explicit Loop(const Communicator& ranks = {}, int micro_batches = 1, std::uint64_t seed = 1)
      : net(network().place({.batch = batch / micro_batches,
                             .backend = reference_backend(),
                             .ranks = ranks,
                             .dtype = DType::f64,
                             .micro_batches = micro_batches})) {
    net.initialize(seed);
    states = sgd.attach(net);
    targets = Targets(net);
    const std::vector<std::int32_t> labels(std::size_t(net.x().shape.n), 1);
    targets.load(labels.data());
    const Tensor x(net.x().form());
    for (std::int64_t i = 0; i < x.view().shape.size(); ++i)
      x.as<double>()[i] = Random(1, std::uint64_t(ranks.rank())).normal(std::uint64_t(i));
    copy_bytes(x, net.x());
  }
  static Network network() {
    Network n = small_network(false, 0);
    n.add<SoftmaxCrossEntropy>({}, "loss");
    return n;
  }
  void forward(bool training = true) {
    Context context{.stream = stream, .training = training, .targets = targets.move(stream)};
    net.forward(context);
  }
  void backward() {
    Context context{.stream = stream, .targets = targets.move(stream)};
    net.backward(context);
  }
  void update() { sgd.update(net, stream, 0.1, 1); }
  void step() { forward(), backward(), update(); }

  Optimizer sgd = SGD{.rate = 0.1, .momentum = 0.9};
  PlacedNetwork net;
  Tensor states;
  Targets targets;
  Stream stream;
};

const std::string no_backward = "update: expected one backward pass since the last update, got 0";
const std::string two_backwards = "update: expected one backward pass since the last update, got 2";
const std::string no_forward = "backward: expected a forward pass with Context::training before it";

/// What rank 0 of two throws; rank 1 must throw the same.
std::string said_by_both(const std::function<void(World&)>& body) {
  std::array<std::string, 2> said;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    said[std::size_t(world.rank())] = error_of([&] { body(world); });
  });
  CHECK(said[0] == said[1]);
  return said[0];
}

std::vector<double> trained(const Dataset& data, bool anew, std::int64_t steps) {
  Trainer trainer(small_network(false), {}, SGD{.rate = 0.05},
                  {.batch = batch, .backend = "reference", .dtype = DType::f64});
  std::optional<Loader> loader;
  for (std::int64_t i = 0; i < steps; ++i) {
    if (!loader || anew) loader = trainer.loader(data, true);
    trainer.step(*loader, steps);
  }
  return weights(trainer.network());
}

}  // namespace

TEST_CASE("an update takes the gradients of one backward pass") {
  const int micro_batches = GENERATE(1, 3);
  CAPTURE(micro_batches);
  Loop loop({}, micro_batches);
  const auto whole = [&] {
    for (int i = 0; i < micro_batches; ++i) loop.forward(), loop.backward();
  };
  loop.update(), loop.update();  // of gradients that were put there by hand
  for (int again = 0; again < 2; ++again) {
    whole(), loop.update();
    CHECK_THAT(error_of([&] { loop.update(); }), ContainsSubstring(no_backward));
  }
  whole(), whole();
  const std::vector<double> before = weights(loop.net);
  CHECK_THAT(error_of([&] { loop.update(); }), ContainsSubstring(two_backwards));
  CHECK(weights(loop.net) == before);
  loop.net.drop_gradients();
  whole(), loop.update();
  CHECK(weights(loop.net) != before);
}

TEST_CASE("a trainer's step leaves no gradients for an update, and one may follow it") {
  const auto data = small_data();
  Trainer t(Loop::network(), {}, SGD{.rate = 0.1}, {.batch = batch, .backend = "reference"});
  losses(t, *data, 2);
  Stream stream;
  const auto update = [&] { t.optimizer().update(t.network(), stream, 0.1, 3); };
  CHECK_THAT(error_of(update), ContainsSubstring(no_backward));
  const Tensor labels({batch, 1, 1, 1}, DType::i32);
  Context context{.stream = stream, .targets = labels};
  t.network().forward(context), t.network().backward(context);
  CHECK_NOTHROW(update());
}

TEST_CASE("a training goes back to a checkpoint between two epochs") {
  const auto data = small_data();
  const checkpoint_files::Folder folder;
  const auto train = [&](bool back) {
    Trainer t(small_network(false), {}, SGD{.rate = 0.05},
              {.batch = batch, .backend = "reference", .dtype = DType::f64});
    bool went = false;
    for (const Epoch& epoch : t.fit(*data, {.epochs = 4})) {
      if (epoch.number == 1 && !went) t.save(folder / "one");
      if (epoch.number != 3 || !back || std::exchange(went, true)) continue;
      t.resume(folder / "one");
    }
    return weights(t.network());
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("a profile leaves no gradients for an update") {
  Loop loop;
  profile(loop.net, Communicator(), {.warmup = 1, .steps = 2});
  CHECK_THAT(error_of([&] { loop.update(); }), ContainsSubstring(no_backward));
  CHECK_NOTHROW(loop.step());
}

TEST_CASE("a backward pass needs a forward pass of its own, in training") {
  Loop loop;
  CHECK_THAT(error_of([&] { loop.backward(); }), ContainsSubstring(no_forward));
  loop.forward(), loop.backward();
  CHECK_THAT(error_of([&] { loop.backward(); }), ContainsSubstring(no_forward));
  loop.update();
  loop.forward(), loop.forward(false);  // the evaluation has run over what backward would read
  CHECK_THAT(error_of([&] { loop.backward(); }), ContainsSubstring(no_forward));
  CHECK_NOTHROW(loop.step());
}

TEST_CASE("ranks with unlike weights do not train", "[host]") {
  const std::string other = " has other values on rank 1 than on rank 0";
  const auto by_seed =
      said_by_both([](World& world) { Loop(world, 1, 1 + std::uint64_t(world.rank())).step(); });
  CHECK_THAT(by_seed, ContainsSubstring("update: a.weight" + other));
  CHECK_THAT(by_seed, ContainsSubstring("expected initialize() with one seed"));
  CHECK(said_by_both([](World& world) { Loop(world).step(); }).empty());

  const checkpoint_files::Folder folder;
  const auto data = small_data();
  const auto said = [&](std::int64_t steps) {
    return said_by_both([&](World& world) {
      Trainer t(small_network(false), world, SGD{.rate = 0.05},
                {.batch = batch, .backend = "reference", .dtype = DType::f64});
      if (steps > 0) losses(t, *data, steps);
      if (world.rank() == 1) t.network().initialize(7);
      steps > 0 ? t.save(folder / "file") : void(losses(t, *data, 1));
    });
  };
  CHECK_THAT(said(0), ContainsSubstring("update: a.weight" + other));
  CHECK_THAT(said(2), ContainsSubstring("file: not saved: after step 2 a.weight" + other));
  CHECK(folder.files() == 0);
}

TEST_CASE("of the biases of a layer that is split along its input one counts", "[host]") {
  const auto data = small_data();
  const checkpoint_files::Folder folder;
  const Network net = small_network(false);
  CHECK(said_by_both([&](World& world) {
          Trainer t(net, world, SGD{.rate = 0.05},
                    {.batch = batch,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_of(net, {.splits = {{"c", {.input = 2}}}}, 2)});
          for (const NamedParameter& n : t.network().parameters())
            if (n.name == "c.bias" && world.rank() == 1) n.parameter->value.as<double>()[0] = 7;
          losses(t, *data, 2);
          t.save(folder / "file");
        }).empty());
}

TEST_CASE("with workers, ranks with unlike weights do not train", "[host]") {
  const auto data = small_data();
  CHECK_THAT(said_by_both([&](World& world) {
               Trainer t(small_network(true), world, SGD{.rate = 0.05},
                         {.batch = batch, .workers = 4, .backend = "reference"});
               if (world.rank() == 1) t.network().initialize(7);
               losses(t, *data, 1);
             }),
             ContainsSubstring("update: a.weight has other values on rank 1 than on rank 0"));
}

TEST_CASE("a step takes its own rank's part of the batch", "[host]") {
  const auto data = small_data();
  CHECK(error_of([&] {
          run_ranks(2, [&](World& world) {
            Trainer t(small_network(false), world, SGD{}, {.batch = batch, .backend = "reference"});
            Loader mine(*data, {.global_batch = batch, .ranks = 2});  // rank 0 of them, everywhere
            t.step(mine.next(), mine.batches(), 1);
          });
        }) == "expected the part of rank 1 of 2 of the batch, got that of rank 0 of 2");
  CHECK(error_of([&] {
          run_ranks(2, [&](World& world) {
            Trainer t(small_network(false), world, SGD{}, {.batch = batch, .backend = "reference"});
            Loader mine(*data, {.global_batch = batch / 2});
            t.step(mine.next(), mine.batches(), 1);
          });
        }).starts_with("expected the part of rank "));
}

TEST_CASE("a loader begins where training stands, or is refused") {
  const auto data = small_data();
  CHECK(trained(*data, true, 7) == trained(*data, false, 7));  // four batches an epoch
  const checkpoint_files::Folder folder;
  const auto trainer = [] {
    return Trainer(small_network(false), {}, SGD{.rate = 0.05},
                   {.batch = batch, .backend = "reference"});
  };
  Trainer first = trainer();
  Loader loader = first.loader(*data, true);
  for (int i = 0; i < 6; ++i) first.step(loader, 10);
  first.save(folder / "six");
  Trainer second = trainer();
  Loader early = second.loader(*data, true);
  second.resume(folder / "six");
  CHECK(error_of([&] { second.step(early, 10); }) ==
        "start: expected batch 2 of epoch 1, got a loader at batch 0 of epoch 0: one that loader() "
        "makes now begins where training stands, as does Loader::seek()");
  early.seek(1, 2);
  first.step(loader, 10), second.step(early, 10);
  CHECK(weights(second.network()) == weights(first.network()));
}
