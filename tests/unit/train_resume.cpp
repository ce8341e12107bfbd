// A training that was interrupted and resumed equals one that was not, bit by bit.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <unistd.h>

#include <cstdio>

using namespace lamina;
using namespace lamina::test;

namespace {

struct State {
  std::vector<double> losses, weights;
  bool operator==(const State&) const = default;
};

/// Trains `first` steps, saves, and goes on to 30: in one go, or with a new trainer.
State train(int ranks, const Optimizer& optimizer, std::int64_t first, bool interrupted) {
  const std::string path = text("/tmp/lamina-resume-", getpid(), ".safetensors");
  const auto data = small_data();
  State state;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    const FitOptions fit{.epochs = 8};
    const auto make = [&] {
      return Trainer(small_network(true), world, optimizer,
                     {.batch = 24, .backend = "auto", .schedule = parse_schedule("cosine")});
    };
    auto trainer = std::make_unique<Trainer>(make());
    // The schedule is that of the whole training, so the first part must know its length.
    FitOptions part = fit;
    std::vector<double> l;
    auto loader = trainer->loader(*data, true, part);
    for (std::int64_t i = 0; i < first; ++i) l.push_back(trainer->step(loader, 30).loss);
    trainer->save(path);
    if (interrupted) {
      trainer = std::make_unique<Trainer>(make());
      trainer->resume(path);
      // Catch2 is not for several threads at once.
      check(trainer->progress().step == first, "resumed at step ", trainer->progress().step);
    }
    for (const double loss : losses(*trainer, *data, 30, fit)) l.push_back(loss);
    if (world.rank() == 0) state = {l, weights(trainer->network())};
  });
  std::remove(path.c_str());
  return state;
}

}  // namespace

TEST_CASE("resuming is bit-equal, on one rank and on two") {
  const int ranks = GENERATE(1, 2);
  const std::int64_t first = GENERATE(6, 8);  // within an epoch of 4 steps, and at the end of one
  const int which = GENERATE(0, 1, 2, 3);
  CAPTURE(ranks, first, which);
  Optimizer optimizer = which == 0 ? Optimizer(SGD{.rate = 0.05, .momentum = 0.9, .nesterov = true})
                        : which == 1 ? Optimizer(Adam{})
                        : which == 2 ? Optimizer(AdamW{})
                                     : Optimizer(LARS{.rate = 1});
  const State whole = train(ranks, optimizer, first, false);
  REQUIRE(whole.losses.size() == 30);
  CHECK(whole == train(ranks, optimizer, first, true));
}

TEST_CASE("resuming with other settings is refused by name") {
  const std::string path = text("/tmp/lamina-refused-", getpid(), ".safetensors");
  World world;
  Trainer(small_network(true), world, SGD{.momentum = 0.9}, {.batch = 8}).save(path);
  const auto resume = [&](const Optimizer& o, std::int64_t batch, std::uint64_t seed) {
    Trainer(small_network(true), world, o, {.batch = batch, .seed = seed}).resume(path);
  };
  CHECK_NOTHROW(resume(SGD{.momentum = 0.9}, 8, 1));
  CHECK_THROWS_WITH(resume(SGD{.momentum = 0.9}, 16, 1), ContainsSubstring("global_batch 8"));
  CHECK_THROWS_WITH(resume(SGD{.momentum = 0.9}, 8, 2), ContainsSubstring("seed 1"));
  CHECK_THROWS_AS(resume(Adam{}, 8, 1), Error);
  // Also of what is frozen, in both directions; without momentum nothing else would tell.
  const auto with = [&](std::vector<std::string> frozen) {
    return std::make_unique<Trainer>(small_network(true), world, SGD{},
                                     TrainerOptions{.batch = 8, .frozen = std::move(frozen)});
  };
  for (const bool now : {false, true}) {
    const std::string name = with({})->network().parameters()[0].name;
    with(now ? std::vector<std::string>() : std::vector{name})->save(path);
    CHECK_NOTHROW(with(now ? std::vector<std::string>() : std::vector{name})->resume(path));
    CHECK_THROWS_WITH(with(now ? std::vector{name} : std::vector<std::string>())->resume(path),
                      ContainsSubstring(now ? "was saved with nothing frozen, but this run has "
                                            : "frozen, but this run has nothing"));
  }
  std::remove(path.c_str());
}

TEST_CASE("within an epoch training goes on with as many images only") {
  const std::string path = text("/tmp/lamina-images-", getpid(), ".safetensors");
  World world;
  const auto make = [&] {
    return std::make_unique<Trainer>(small_network(true), world, SGD{},
                                     TrainerOptions{.batch = 24});
  };
  const auto data = small_data();
  const auto some = [&](std::int64_t steps) {
    const auto trainer = make();
    for (const Epoch& epoch : trainer->fit(*data, {.epochs = 2, .steps = steps})) (void)epoch;
    trainer->save(path);
    const auto resumed = make();
    resumed->resume(path);
    const auto more = small_data(120);
    return error_of([&] {
      for (const Epoch& epoch : resumed->fit(*more, {.epochs = 3})) (void)epoch;
    });
  };
  const std::int64_t whole = data->size() / 24;
  CHECK_THAT(some(whole - 1), ContainsSubstring(text(
                                  "start: 120 images, but training stands at batch ", whole - 1)));
  CHECK(some(whole) == "");

  // A training in two parts goes on in the second; the first has nothing left to do.
  const auto second = small_data(48);
  const auto parts = [&](Trainer& trainer, std::int64_t steps) {
    for (const Epoch& epoch : trainer.fit(*data, {.epochs = 1})) (void)epoch;
    for (const Epoch& epoch : trainer.fit(*second, {.epochs = 9, .steps = steps})) (void)epoch;
    return trainer.progress().step;
  };
  const auto first = make();
  CHECK(parts(*first, whole + 1) == whole + 1);
  first->save(path);
  const auto again = make();
  again->resume(path);
  CHECK(parts(*again, whole + 4) == whole + 4);
  // Whoever resumes when a fit() is there already is told, too.
  const auto late = make();
  auto fit = late->fit(*data, {.epochs = 9});
  late->resume(path);
  CHECK_THAT(error_of([&] {
               for (const Epoch& epoch : fit) (void)epoch;
             }),
             ContainsSubstring("start: 96 images, but training stands at batch 1 of 48 images"));
  // Of batches of one's own nobody knows how many there are.
  const auto own = make();
  Loader loader = own->loader(*data, true);
  own->step(loader.next(), whole, 100);
  CHECK(own->progress().images == 0);
  std::remove(path.c_str());
}
