// A training that was interrupted and resumed equals one that was not, bit by bit.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>

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

// ---- other data from an epoch's end on -------------------------------------------------------

namespace {

/// Batches of small_data().
constexpr std::int64_t batch = 24, before = 4;

/// After an epoch on small_data(), as a run leaves it that is interrupted before it says so.
void train_one_epoch(const std::string& path) {
  const auto data = small_data();
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = batch});
  Loader loader = trainer.loader(*data, true);
  for (std::int64_t i = 0; i < before; ++i) trainer.step(loader, 9);
  trainer.progress().evaluation_due = true;
  trainer.save(path);
}

struct Rates {
  std::vector<double> all;
  std::int64_t total = 0;  ///< of Fit::total_steps()
};

Rates rates_of(Trainer& trainer, const Dataset& data, FitOptions fit) {
  Rates found;
  fit.on_step = [&](const StepResult& r) { found.all.push_back(r.rate); };
  auto epochs = trainer.fit(data, fit);
  found.total = epochs.total_steps();
  for (const Epoch& epoch : epochs) (void)epoch;
  return found;
}

/// From step `first` on, in steps of `per_epoch`.
std::vector<double> scheduled(const Schedule& s, std::int64_t first, std::int64_t per_epoch,
                              std::int64_t total) {
  std::vector<double> rates;
  for (std::int64_t i = first; i < total; ++i) rates.push_back(s.at(0.05, i, per_epoch, total));
  return rates;
}

/// Each has a drop, or an end, that is somewhere else in other epochs.
std::vector<Schedule> schedules() {
  std::vector<Schedule> all;
  for (const char* spelling : {"step:2,0.1", "multistep:1.5,2,0.1", "poly:2", "cosine"})
    for (const double warmup : {0.0, 1.5}) {
      all.push_back(parse_schedule(spelling));
      all.back().warmup = warmup;
    }
  Schedule own;
  own.factor = [](double position, double total) { return 1 - position / (2 * total); };
  all.push_back(own);
  return all;
}

}  // namespace

TEST_CASE("after an epoch's end training goes on in epochs of other data") {
  const checkpoint_files::Folder folder;
  train_one_epoch(folder / "one");
  World world;
  for (const std::int64_t per_epoch : {2, 4, 7}) {  // fewer, as many, more
    const auto data = small_data(per_epoch * batch + 5);
    for (const Schedule& schedule : schedules()) {
      CAPTURE(per_epoch, int(schedule.kind), schedule.warmup);
      const auto resumed = [&] {
        auto trainer =
            std::make_unique<Trainer>(small_network(true), world, SGD{.rate = 0.05},
                                      TrainerOptions{.batch = batch, .schedule = schedule});
        trainer->resume(folder / "one");
        return trainer;
      };
      const auto trainer = resumed();
      const Rates found = rates_of(*trainer, *data, {.epochs = 3});
      CHECK(found.all == scheduled(schedule, per_epoch, per_epoch, 3 * per_epoch));
      CHECK(found.total == before + 2 * per_epoch);
      CHECK(trainer->progress().step == found.total);
      CHECK(trainer->progress().epoch == 3);
      CHECK(rates_of(*trainer, *data, {.epochs = 3}).all.empty());

      // In two parts, of which the second begins within an epoch.
      const auto first = resumed();
      rates_of(*first, *data, {.epochs = 3, .steps = before + 1});
      first->save(folder / "part");
      const auto second = resumed();
      second->resume(folder / "part");
      const Rates rest = rates_of(*second, *data, {.epochs = 3});
      CHECK(rest.all == std::vector(found.all.begin() + 1, found.all.end()));
      CHECK(rest.total == found.total);

      // Steps are counted as ever.
      const Rates counted = rates_of(*resumed(), *data, {.steps = 9});
      CHECK(counted.all == scheduled(schedule, per_epoch, per_epoch, per_epoch + 9 - before));
      CHECK(counted.total == 9);

      // Of two limits the earlier one holds.
      const std::int64_t in_epochs = before + 2 * per_epoch;
      for (const std::int64_t steps : {before + 1, in_epochs - 1, in_epochs, std::int64_t(1000)})
        CHECK(rates_of(*resumed(), *data, {.epochs = 3, .steps = steps}).total ==
              std::min(steps, in_epochs));
      Trainer anew(small_network(true), world, SGD{.rate = 0.05}, {.batch = batch});
      CHECK(rates_of(anew, *data, {}).total == per_epoch);
    }
  }
}

TEST_CASE("inference of one's own may follow right on a resume of workers") {
  const checkpoint_files::Folder folder;
  const auto data = small_data();
  World world;
  const TrainerOptions how{.batch = batch, .workers = 2};
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, how);
  for (const Epoch& epoch : trainer.fit(*data, {.steps = 3})) (void)epoch;
  trainer.save(folder / "run");
  Trainer other(small_network(true), world, SGD{.rate = 0.05}, how);
  other.resume(folder / "run");
  CHECK(weights(other.network()) == weights(trainer.network()));
  for (Trainer* t : {&trainer, &other}) {
    Targets targets(t->network());
    Context context{.stream = t->stream(), .training = false};
    context.targets = targets.move(t->stream());
    for (int w = 0; w < 2; ++w) CHECK_NOTHROW(t->network().forward(context));
  }
}

TEST_CASE("ranks that join end where the others do, also after an epoch on other data") {
  const checkpoint_files::Folder folder;
  train_one_epoch(folder / "one");
  const bool by_workers = GENERATE(true, false);
  CAPTURE(by_workers);
  const auto data = small_data(48);
  const Schedule schedule = parse_schedule("cosine");
  constexpr std::int64_t epochs = 40, per_epoch = 2, end = before + (epochs - 1) * per_epoch;
  std::vector<double> rates[2];
  std::int64_t steps[2] = {}, joined = 0;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Trainer trainer(
        small_network(true), world, SGD{.rate = 0.05},
        {.batch = batch, .workers = by_workers ? 2 : 0, .active = 1, .schedule = schedule});
    if (trainer.active()) trainer.resume(folder / "one");
    Changes changes{trainer, {{before + 2, 2}}};
    const auto me = std::size_t(world.rank());
    FitOptions fit{.epochs = epochs};
    fit.resize = std::ref(changes);
    fit.on_resize = [&](const Resize& r) {
      if (me == 0) joined = r.step;
    };
    fit.on_step = [&](const StepResult& r) {
      rates[me].push_back(r.rate);
      // Or the training is over before the other one is ready.
      if (trainer.ranks().size() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
    steps[me] = trainer.progress().step;
  });
  REQUIRE(joined > before);
  CHECK(rates[0] == scheduled(schedule, per_epoch, per_epoch, epochs * per_epoch));
  REQUIRE(rates[1].size() == std::size_t(end - joined));
  CHECK(rates[1] == std::vector(rates[0].end() - std::ptrdiff_t(rates[1].size()), rates[0].end()));
  CHECK(steps[0] == end);
  CHECK(steps[1] == end);
}

TEST_CASE("what is said of an epoch before a resume is of the data it was trained on") {
  const checkpoint_files::Folder folder;
  train_one_epoch(folder / "one");
  const Progress at = read_progress(folder / "one");
  const std::int64_t batches = GENERATE(2, 4, 7);
  CAPTURE(batches);
  const auto data = small_data(batches * batch);
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = batch});
  trainer.resume(folder / "one");
  std::vector<Epoch> said;
  const FitOptions fit{.epochs = 2, .save = folder / "run", .keep_best = true};
  for (const Epoch& epoch : trainer.fit(*data, fit)) {
    said.push_back(epoch);
    // On another number of images it would not compare with what comes.
    CHECK(std::filesystem::exists(folder / "run.best") == (said.size() > 1 || batches == before));
  }
  REQUIRE(said.size() == 2);
  CHECK(said[0].number == 1);
  CHECK(said[0].loss == at.loss / double(before));
  CHECK(said[0].top1 == at.top1 / double(before));
  CHECK(said[1].number == 2);
  const Progress best = read_progress(folder / "run.best");
  CHECK(best.settings.at("score.images") == text(batches * batch));
  const bool first = batches == before && said[0].loss < said[1].loss;
  CHECK(best.score->loss == said[first ? 0 : 1].loss);
}
