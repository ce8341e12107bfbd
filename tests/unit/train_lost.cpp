// Trainings by fit() whose ranks come and go at random, until one is lost: then others go on from
// the last checkpoint, as `lamina launch` has them do.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

struct How {
  Network net;
  int workers = 0;
  bool sharded = false;
  std::vector<std::string> plans = {};  ///< on 1, 2, ... ranks; with workers none
};

TrainerOptions options_of(const How& how, int active) {
  TrainerOptions o{.batch = 24, .workers = how.workers, .active = active};
  if (how.workers > 0) return o;
  o.splits_for = [net = how.net, plans = how.plans](int ranks) {
    return splits_of(decide(built_in_plan(plans[std::size_t(ranks) - 1], net, 24, ranks), net, 24));
  };
  o.splits = o.splits_for(active), o.shard_optimizer = how.sharded;
  o.backend = "reference", o.dtype = DType::f64;
  return o;
}

Trainer trainer_of(const How& how, const Communicator& ranks, int active) {
  set_threads(1);
  return {how.net, ranks, SGD{.rate = 0.02, .momentum = 0.9}, options_of(how, active)};
}

/// What one start of the program comes to.
struct Life {
  int started = 1, active = 1;
  std::vector<int> wanted = {};  ///< ranks, one after the other
  int lost = -1;                 ///< the rank, when all of this was done; -1: it ends in order
  bool amid = false;             ///< and while the last of `wanted` was under way
};

std::vector<Life> lives(unsigned seed, std::size_t count, bool powers_of_two) {
  std::mt19937 random(seed);
  const auto any = [&](int most) {
    const int n = 1 + int(random() % unsigned(most));
    return powers_of_two && n == 3 ? 2 : n;
  };
  std::vector<Life> all;
  while (all.size() < count) {
    Life life{.started = 2 + int(random() % 3)};
    life.active = any(life.started);
    for (int now = life.active; life.wanted.size() < 4;)
      if (const int next = any(life.started); next != now) life.wanted.push_back(now = next);
    life.amid = random() % 2 == 0, life.lost = int(random() % 4);
    all.push_back(life);
  }
  all.back().lost = -1;
  return all;
}

/// Goes on from the checkpoint, if there is one. Returns how many resizes there were.
int live(const How& how, const Life& life, const std::string& checkpoint) {
  const auto data = small_data();
  const std::size_t all = life.wanted.size();
  std::atomic<std::size_t> asked = 0, done = 0;
  const auto work = [&](World& world) {
    Trainer trainer = trainer_of(how, world, life.active);
    if (trainer.active() && std::filesystem::exists(checkpoint)) trainer.resume(checkpoint);
    FitOptions fit{.epochs = 100000, .save = checkpoint, .save_every = 3};
    fit.resize = [&] { return asked == done && asked < all ? life.wanted[asked++] : 0; };
    fit.on_resize = [&](const Resize&) {
      if (world.rank() == 0) ++done;
    };
    fit.on_step = [&](const StepResult&) {
      const bool over = life.lost >= 0 && (life.amid ? asked == all : done == all);
      check(!over || world.rank() != life.lost % trainer.ranks().size(), "it is lost");
      // Time for those who get ready.
      if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    fit.stop = [&] { return life.lost < 0 && done == all; };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
  };
  const std::string error = error_of([&] { run_ranks(life.started, work); });
  CHECK(error == (life.lost < 0 ? "" : "it is lost"));
  CHECK(done + life.amid >= all);
  return int(done);
}

/// On one rank, and some steps further; so states of the optimizer have their say, too.
struct Trained {
  std::int64_t steps = 0;
  std::vector<double> weights = {};
  std::string saved = {};  ///< byte by byte
};

Trained go_on(const How& how, const std::string& checkpoint, std::int64_t steps) {
  const Folder folder;
  const auto data = small_data();
  World world;
  Trainer trainer = trainer_of(how, world, 1);
  if (!checkpoint.empty()) trainer.resume(checkpoint);
  Loader loader = trainer.loader(*data, true);
  while (steps-- > 0) trainer.step(loader, 100000);
  trainer.save(folder / "end");
  return {trainer.progress().step, weights(trainer.network()),
          checkpoint_files::read(folder / "end")};
}

/// Of all lives, and of a training on one rank that nothing has disturbed.
std::pair<Trained, Trained> disturbed_or_not(const How& how, const std::vector<Life>& all) {
  const Folder folder;
  int resizes = 0;
  for (const Life& life : all) resizes += live(how, life, folder / "all");
  CHECK(resizes >= int(3 * all.size()));
  const Trained found = go_on(how, folder / "all", 3);
  return {found, go_on(how, {}, found.steps)};
}

}  // namespace

TEST_CASE("resizes and lost ranks at random leave the bits of an undisturbed training") {
  const unsigned seed = GENERATE(range(1u, 6u));
  CAPTURE(seed);
  const How how{.net = local_norm_network(), .workers = 4};
  const auto [found, expected] = disturbed_or_not(how, lives(seed, 3, true));
  CHECK((found.weights == expected.weights));
  CHECK((found.saved == expected.saved));
  CHECK(!found.saved.empty());
}

TEST_CASE("resizes and lost ranks at random are none to layers that are split") {
  const unsigned seed = GENERATE(range(1u, 5u));
  How how{.net = small_network(true, 0), .sharded = seed % 2 == 0};
  how.plans = {"data", "owt", seed < 3 ? "owt" : "filter", seed < 3 ? "owt" : "spatial"};
  CAPTURE(seed, how.sharded);
  const auto [found, expected] = disturbed_or_not(how, lives(10 + seed, 3, false));
  REQUIRE(found.weights.size() == expected.weights.size());
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    CHECK(found.weights[i] == Approx(expected.weights[i]).epsilon(1e-9).margin(1e-12));
}
