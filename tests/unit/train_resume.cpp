// A training that was interrupted and resumed equals one that was not, bit by bit.
#include "catch.hpp"
#include "support/training.hpp"

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
  std::remove(path.c_str());
}
