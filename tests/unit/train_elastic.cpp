// Trainings whose ranks come and go at random, between evaluations and checkpoints, while somebody
// asks to stop, and where ranks cannot make themselves ready.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

thread_local double nap = 0;        // seconds that placing takes longer on this rank
thread_local bool refuses = false;  // or that it fails
std::atomic<bool> held = false;     // or, where it takes longer, until this ends
thread_local bool trains = false;   // a rank's own thread, not one in the background
std::atomic<int> held_behind = 0;   // or in the background, on so many threads, until 0

/// A ReLU that takes its time to be placed.
class Late final : public UnaryLayer {
 public:
  struct Options {};
  explicit Late(Options) {}
  std::string_view type() const override { return "Late"; }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    return per_element(split.of_output(only(xs)), t, 1, 1);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    std::this_thread::sleep_for(std::chrono::duration<double>(nap));
    while ((held && nap > 0) || (!trains && held_behind == threads()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check(!refuses, "there is no room");
    return backend.activation({Activation::Kind::relu}, x);
  }
};

/// Dropout, and batch norm of which each worker has statistics of its own.
Network local_network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .bias = false}, "a");
  net.add<BatchNorm>({}, "first");
  net.add<Late>();
  net.add<Dropout>({.rate = 0.25});
  net.add<Conv2D>({.channels = 6, .kernel = 3, .stride = 2}, "b");
  net.add<BatchNorm>({.momentum = 0.3}, "second");
  net.add<Linear>({.features = 4}, "c");
  return net;
}

struct How {
  Network net = local_network();
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9};
  int workers = 8;
  bool fast = false;  ///< in f32, by what is fastest; else in f64, by the reference
};

TrainerOptions options_of(const How& how, int active) {
  return {.batch = 24,
          .workers = how.workers,
          .active = active,
          .backend = how.fast ? "auto" : "reference",
          .dtype = how.fast ? DType::f32 : DType::f64};
}

/// Some steps on so many ranks.
struct Stretch {
  int ranks = 1, steps = 1;
  bool evaluates = false;
};

std::vector<Stretch> stretches(unsigned seed, int count, const std::vector<int>& ranks) {
  std::mt19937 random(seed);
  std::vector<Stretch> all;
  while (int(all.size()) < count) {
    const Stretch next{ranks[random() % ranks.size()], int(random() % 3), random() % 4 == 0};
    if (all.empty() || all.back().ranks != next.ranks) all.push_back(next);
  }
  return all;
}

/// The same, but nobody comes or goes.
std::vector<Stretch> undisturbed(std::vector<Stretch> all, int ranks = 1) {
  for (Stretch& s : all) s.ranks = ranks;
  return all;
}

struct Trained {
  std::vector<double> losses, weights;
  std::string saved;  ///< the checkpoint, byte by byte
};

/// A loop of one's own. Goes on from `resumed`, if that is there.
Trained train(const How& how, const std::vector<Stretch>& all, const std::string& resumed = {}) {
  const Folder folder;
  const auto data = small_data(), validation = small_data(30, false);
  int most = 1;
  for (const Stretch& s : all) most = std::max(most, s.ranks);
  if (!resumed.empty()) checkpoint_files::write(folder / "from", resumed);
  Trained found;
  run_ranks(most, [&](World& world) {
    set_threads(1);
    TrainerOptions options = options_of(how, all[0].ranks);
    options.schedule = parse_schedule("cosine");
    Trainer trainer(how.net, world, how.optimizer, options);
    if (!resumed.empty() && trainer.active()) {
      const auto averaged = trainer.resume(folder / "from");
      check(averaged.empty(), in_words(averaged), " go on from their mean");
    }
    int ranks = all[0].ranks;
    for (const Stretch& s : all) {
      const int before = std::exchange(ranks, s.ranks);
      if (before != ranks && world.rank() < std::max(before, ranks)) trainer.resize(ranks, before);
      if (!trainer.active()) continue;
      Loader loader = trainer.loader(*data, true);
      std::vector<double> losses;
      for (int i = 0; i < s.steps; ++i) losses.push_back(trainer.step(loader, 100).loss);
      if (s.evaluates) losses.push_back(trainer.evaluate(*validation).loss);
      if (world.rank() == 0) found.losses.insert(found.losses.end(), losses.begin(), losses.end());
    }
    if (!trainer.active()) return;
    trainer.save(folder / "to");
    if (world.rank() == 0) found.weights = weights(trainer.network());
  });
  found.saved = checkpoint_files::read(folder / "to");
  return found;
}

void same(const Trained& one, const Trained& other) {
  CHECK((one.losses == other.losses));
  CHECK((one.weights == other.weights));
  CHECK((one.saved == other.saved));  // not to be printed
  CHECK(!one.saved.empty());
}

}  // namespace

TEST_CASE("ranks that come and go at random leave the bits of an undisturbed training") {
  const int which = GENERATE(0, 1, 2);
  const bool fast = GENERATE(false, true);
  CAPTURE(which, fast);
  How how{.fast = fast};
  if (which == 1) how.optimizer = Optimizer(LARS{.rate = 1}).clip_norm(0.5);
  if (which == 2) how = {small_network(true), AdamW{}, 12, fast};
  const auto all = stretches(unsigned(7 + which), 31,
                             how.workers == 12 ? std::vector{1, 2, 4} : std::vector{1, 2, 4, 8});
  const Trained expected = train(how, undisturbed(all));
  same(train(how, all), expected);
  same(train(how, undisturbed(all, 4)), expected);
}

TEST_CASE("on numbers of ranks that are no power of two sums round otherwise, and no more") {
  How how{.workers = 6, .fast = false};
  const auto all = stretches(5, 12, {1, 2, 3, 4, 5, 6});
  const Trained expected = train(how, undisturbed(all)), found = train(how, all);
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    CHECK(found.losses[i] == Approx(expected.losses[i]).epsilon(1e-6));
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    CHECK(found.weights[i] == Approx(expected.weights[i]).epsilon(1e-6).margin(1e-9));
}

TEST_CASE("what is saved on some ranks goes on with the same bits on others") {
  const How how{.fast = GENERATE(false, true)};
  const std::vector<Stretch> first = {{1, 5, true}}, second = {{1, 4, true}, {1, 2, false}};
  const Trained half = train(how, first), whole = train(how, second, half.saved);
  std::vector<Stretch> all = first;
  all.insert(all.end(), second.begin(), second.end());
  CHECK((train(how, all).saved == whole.saved));
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    CHECK((train(how, undisturbed(first, ranks)).saved == half.saved));
    same(train(how, undisturbed(second, ranks), half.saved), whole);
  }
  same(train(how, {{2, 4, true}, {4, 2, false}}, half.saved), whole);
}

TEST_CASE("ranks may change before the first step, and right after a checkpoint was read") {
  const How how{};
  const std::vector<Stretch> late = {{1, 0}, {4, 3, true}, {2, 2}};
  const Trained expected = train(how, undisturbed(late));
  same(train(how, late), expected);
  same(train(how, late, expected.saved), train(how, undisturbed(late), expected.saved));
}

namespace {

Trainer with_workers(World& world, int workers) {
  return {local_network(), world, SGD{}, {.batch = 24, .workers = workers}};
}

}  // namespace

TEST_CASE("statistics of other workers than those of a checkpoint start from their mean") {
  const Folder folder;
  World world;
  const auto data = small_data();
  Trainer four = with_workers(world, 4), two = with_workers(world, 2),
          other = with_workers(world, 4);
  auto loader = four.loader(*data, true);
  four.step(loader, 9);
  four.save(folder / "four");
  CHECK(two.resume(folder / "four").size() == 4);
  CHECK((weights(two.network()) == weights(four.network())));
  CHECK(other.resume(folder / "four").empty());
  two.save(folder / "two");
  CHECK(four.resume(folder / "two").size() == 4);  // and not with what it had itself
  auto same_loader = other.loader(*data, true);
  auto again = four.loader(*data, true);
  CHECK(four.step(again, 9).loss == other.step(same_loader, 9).loss);
}

TEST_CASE("what workers keep is in a checkpoint of before their first step, too") {
  const Folder folder;
  World world;
  const auto data = small_data();
  Trainer two = with_workers(world, 2), four = with_workers(world, 4),
          other = with_workers(world, 4);
  const auto comes_back = [&](const std::string& path) {
    four.save(path);
    CHECK(other.resume(path).empty());
    CHECK(other.evaluate(*data).loss == four.evaluate(*data).loss);
  };
  comes_back(folder / "fresh");
  auto loader = two.loader(*data, true);
  two.step(loader, 9);
  two.save(folder / "two");
  CHECK(four.resume(folder / "two").size() == 4);
  comes_back(folder / "resumed");
  four.network().initialize(7);
  comes_back(folder / "anew");
}

namespace {

/// fit() on ranks that change when rank 0 has done so many steps.
struct Fitted {
  int started = 4, active = 1;
  std::vector<std::pair<std::int64_t, int>> changes = {};
  double nap = 0;  ///< of ranks that join
};

FitOptions fit_options(const Trainer& trainer, const Fitted& f, std::size_t& next,
                       std::int64_t steps) {
  FitOptions fit{.steps = steps};
  fit.resize = [&trainer, &f, &next] {
    const bool due = next < f.changes.size() && trainer.progress().step >= f.changes[next].first;
    return due ? f.changes[next++].second : 0;
  };
  fit.on_step = [&f](const StepResult&) {  // or a training is over before anybody comes
    if (!f.changes.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  };
  return fit;
}

Trainer trainer_of(World& world, const Fitted& f) {
  set_threads(1);
  nap = world.rank() < f.active ? 0 : f.nap;
  return {local_network(), world, SGD{.rate = 0.05, .momentum = 0.9}, options_of({}, f.active)};
}

/// Weights after `steps` steps on one rank.
std::vector<double> weights_after(std::int64_t steps) {
  const auto data = small_data();
  World world;
  set_threads(1);
  Trainer trainer(local_network(), world, SGD{.rate = 0.05, .momentum = 0.9}, options_of({}, 0));
  for (const Epoch& epoch : trainer.fit(*data, {.steps = steps})) (void)epoch;
  trainer.network().average_kept(trainer.stream());
  return weights(trainer.network());
}

/// What rank 0 has in the end, if this rank is that.
void note_weights(Trainer& trainer, const World& world, std::vector<double>& found) {
  if (!trainer.active()) return;
  trainer.network().average_kept(trainer.stream());
  if (world.rank() == 0) found = weights(trainer.network());
}

}  // namespace

TEST_CASE("a training that ends while ranks get ready ends well, and another one takes them in") {
  const auto data = small_data();
  const std::int64_t asked = GENERATE(1, 3, 5, 6, 7);
  CAPTURE(asked);
  const Fitted first{.changes = {{asked, 4}}, .nap = 0.15},
      second{.changes = {{8, 2}}, .nap = first.nap};
  std::vector<double> found;
  std::vector<Resize> resizes;
  held = true;  // nobody is ready before it ends
  run_ranks(4, [&](World& world) {
    Trainer trainer = trainer_of(world, first);
    std::size_t next = 0, then = 0;
    for (const Epoch& e : trainer.fit(*data, fit_options(trainer, first, next, 8))) (void)e;
    if (world.rank() == 0) held = false;
    const int before = trainer.ranks().size();
    FitOptions fit = fit_options(trainer, second, then, 60);
    fit.on_step = [&](const StepResult&) {  // they take their time, and longer where much else runs
      const bool waits = world.rank() == 0 && resizes.empty();
      if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resizes.push_back(r);
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    check(before == 1 || world.rank() > 3, before, " ranks in the first training");
    note_weights(trainer, world, found);
  });
  CHECK((found == weights_after(60)));
  REQUIRE(resizes.size() == 1);
  CHECK(resizes[0].to == 2);
  CHECK(resizes[0].prepared > 0.12);  // it was not taken for ready by what it said before
}

TEST_CASE("parked ranks take part in one training after the other") {
  const auto data = small_data();
  std::vector<double> found;
  const Fitted f{.changes = {{14, 4}, {22, 2}}};
  run_ranks(4, [&](World& world) {
    Trainer trainer = trainer_of(world, f);
    std::size_t none = f.changes.size(), next = 0;
    for (const std::int64_t steps : {6, 12})
      for (const Epoch& e : trainer.fit(*data, fit_options(trainer, f, none, steps))) (void)e;
    for (const Epoch& e : trainer.fit(*data, fit_options(trainer, f, next, 40))) (void)e;
    note_weights(trainer, world, found);
  });
  CHECK((found == weights_after(40)));
}

TEST_CASE("a stop in the middle of a resize ends all ranks, and training goes on from there") {
  const auto data = small_data();
  const int after = GENERATE(-1, 0, 1, 2);  // steps since it was announced; -1: asked for
  CAPTURE(after);
  const Fitted f{.changes = {{2, 4}}, .nap = 0.03}, none{};
  std::vector<double> found;
  std::vector<char> stopped(4);
  std::vector<std::int64_t> steps(4);
  run_ranks(4, [&](World& world) {
    Trainer trainer = trainer_of(world, f);
    std::size_t next = 0;
    std::int64_t announced = 1000;
    FitOptions fit = fit_options(trainer, f, next, 1000);
    const auto sleeps = fit.on_step;
    fit.on_step = [&](const StepResult& r) {
      if (r.resize > 0) announced = r.step;
      sleeps(r);
    };
    fit.stop = [&] {
      const bool asked = after < 0 ? next > 0 : trainer.progress().step >= announced + after;
      return world.rank() == 0 && asked;
    };
    auto epochs = trainer.fit(*data, fit);
    for (const Epoch& e : epochs) (void)e;
    stopped[std::size_t(world.rank())] = epochs.stopped();
    steps[std::size_t(world.rank())] = trainer.active() ? trainer.progress().step : -1;
    std::size_t no = 0;
    for (const Epoch& e : trainer.fit(*data, fit_options(trainer, none, no, 300))) (void)e;
    note_weights(trainer, world, found);
  });
  for (const char s : stopped) CHECK(s);
  CHECK(steps[0] < 300);
  for (const std::int64_t s : steps) CHECK((s == -1 || s == steps[0]));
  CHECK((found == weights_after(300)));
}

TEST_CASE("a parked rank is heard while others evaluate") {
  const auto data = small_data(), validation = small_data(24 * 50, false);
  std::atomic<bool> evaluates = false;
  std::int64_t steps = 0;
  bool due = false, stopped = false;
  std::vector<bool> validated;
  run_ranks(2, [&](World& world) {
    Trainer trainer(local_network(), world, SGD{}, options_of({}, 1));
    FitOptions fit{.epochs = 3};
    fit.validation = validation.get();
    fit.on_step = [&](const StepResult&) { evaluates = trainer.progress().evaluation_due; };
    fit.stop = [&] {
      if (world.rank() == 1) return evaluates.load();
      if (evaluates) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return false;
    };
    auto epochs = trainer.fit(*data, fit);
    for (const Epoch& e : epochs)
      if (trainer.active()) validated.push_back(e.validation.has_value());
    if (world.rank() != 0) return;
    steps = trainer.progress().step, due = trainer.progress().evaluation_due;
    stopped = epochs.stopped();
  });
  CHECK((stopped && due));
  CHECK(steps == data->size() / 24);
  CHECK(validated == std::vector<bool>{false});
}

TEST_CASE("where a rank cannot come, training goes on without it, and may ask again") {
  const auto data = small_data();
  const Fitted f{.started = 3, .changes = {{2, 3}, {3, 3}}};
  std::vector<double> found;
  std::vector<std::string> refused;
  std::vector<std::string> resized;
  run_ranks(3, [&](World& world) {
    Trainer trainer = trainer_of(world, f);
    refuses = world.rank() == 2;
    std::size_t next = 0;
    FitOptions fit = fit_options(trainer, f, next, 20);
    fit.on_refused = [&](const std::string& why) { refused.push_back(why); };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resized.push_back(text(r.from, " -> ", r.to));
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    refuses = false;
    const Fitted again{.started = 3, .changes = {{20, 2}}};
    next = 0;
    FitOptions more = fit_options(trainer, again, next, 40);
    more.on_resize = fit.on_resize;
    for (const Epoch& e : trainer.fit(*data, more)) (void)e;
    note_weights(trainer, world, found);
  });
  CHECK(refused == std::vector<std::string>(2, "rank 2: late1 (Late): there is no room"));
  CHECK(resized == std::vector<std::string>{"1 -> 2"});
  CHECK((found == weights_after(40)));
}

TEST_CASE("a resize that is refused leaves training no rehearsal to wait for") {
  const auto data = small_data();
  std::vector<std::string> refused, resized;
  held_behind = 1;  // rank 0 is not ready before it is 0
  run_ranks(3, [&](World& world) {
    set_threads(1);
    trains = true, refuses = world.rank() == 2;
    const How how{.workers = 0, .fast = true};
    Trainer trainer(how.net, world, how.optimizer, options_of(how, 1));
    std::int64_t refused_at = -1;
    FitOptions fit{.steps = 60};
    fit.resize = [&] { return trainer.progress().step < 2 ? 0 : refused_at < 0 ? 3 : 2; };
    fit.on_refused = [&](const std::string& why) {
      refused.push_back(why), refused_at = trainer.progress().step;
    };
    fit.on_step = [&](const StepResult& r) {
      if (refused_at >= 0 && r.step >= refused_at + 5) held_behind = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resized.push_back(text(r.from, " -> ", r.to));
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    trains = refuses = false;
  });
  CHECK(refused == std::vector<std::string>{"rank 2: late1 (Late): there is no room"});
  CHECK(resized == std::vector<std::string>{"1 -> 2"});
}

// Who trains on a device makes nothing ready beside it.
TEST_CASE("a rank that leaves first ends what it was making ready", "[host]") {
  const auto data = small_data();
  held_behind = 2;  // that of rank 1 alone
  std::vector<std::string> resized;
  std::atomic<bool> refused = false, held_at_the_end = true;
  const std::jthread releases([&](const std::stop_token& ended) {
    while (!refused && !ended.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    held_behind = 0;
  });
  run_ranks(3, [&](World& world) {
    set_threads(world.rank() == 1 ? 2 : 1);
    trains = true, refuses = world.rank() == 2;
    const How how{.workers = 0, .fast = true};
    Trainer trainer(how.net, world, how.optimizer, options_of(how, 2));
    FitOptions fit{.steps = 40};
    fit.resize = [&] { return trainer.progress().step < 2 ? 0 : refused ? 1 : 3; };
    fit.on_refused = [&](const std::string&) { refused = true; };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resized.push_back(text(r.from, " -> ", r.to));
      if (world.rank() == 1) held_at_the_end = held_behind != 0;
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    trains = refuses = false;
  });
  CHECK(resized == std::vector<std::string>{"2 -> 1"});
  CHECK(!held_at_the_end);
}

TEST_CASE("the best checkpoint is the same where ranks join") {
  const bool validates = GENERATE(true, false);
  CAPTURE(validates);
  const auto data = small_data(), validation = small_data(30, false);
  const Folder folder;
  const auto fit_on = [&](const Fitted& f, const std::string& path) {
    run_ranks(f.started, [&](World& world) {
      Trainer trainer = trainer_of(world, f);
      std::size_t next = 0;
      FitOptions fit = fit_options(trainer, f, next, 48);
      fit.validation = validates ? validation.get() : nullptr;
      fit.save = path, fit.keep_best = true;
      for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    });
  };
  fit_on({.started = 1, .active = 0}, folder / "alone");
  fit_on({.changes = {{9, 2}, {18, 4}, {30, 1}}}, folder / "several");
  for (const char* which : {"", ".best"}) {
    const std::string alone = checkpoint_files::read(folder / (std::string("alone") + which));
    CHECK(!alone.empty());
    CHECK((alone == checkpoint_files::read(folder / (std::string("several") + which))));
  }
}

TEST_CASE("parked ranks end with the error of a rank that trains") {
  const auto data = small_data();
  const int fails = GENERATE(0, 1);
  const auto work = [&] {
    run_ranks(
        3,
        [&](World& world) {
          Trainer trainer = trainer_of(world, {.active = 2});
          FitOptions fit{.steps = 100000};
          fit.on_step = [&](const StepResult& r) {
            check(world.rank() != fails || r.step < 3, "a disk is full");
          };
          for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
        },
        20);
  };
  CHECK(error_of(work) == "a disk is full");
}
