// How a training ends before its time: when a rank asks for it, all ranks end after the same step
// with everything saved; and what stays of what it saved when it is ruined.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/comm/alike.hpp>

#include <filesystem>
#include <limits>
#include <set>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

Network classifier() {
  Network net = small_network(true);
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// How a training of 40 steps ends in which rank `who` asks to stop before step `when`, or, where
/// that is 0, in the evaluation after the first 4: "6 steps, stopped".
std::string stop(int ranks, int who, std::int64_t when, const std::vector<Split>& splits = {},
                 const std::string& save = {}) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  const auto data = small_data(), validation = small_data(50, false);
  run_ranks(
      ranks,
      [&](World& world) {
        set_threads(1);
        const Network net = classifier();
        Trainer trainer(net, world, SGD{.rate = 0.05}, {.batch = 24, .splits = splits});
        int after_4 = 0;
        FitOptions fit{.epochs = 10, .validation = validation.get(), .save = save};
        fit.stop = [&] {
          const std::int64_t step = trainer.progress().step;
          const bool now = when > 0 ? step + 1 >= when : step == 4 && ++after_4 > 2;
          return now && world.rank() == who;
        };
        bool validated = false;
        auto epochs = trainer.fit(*data, fit);
        for (const Epoch& epoch : epochs) validated = epoch.validation.has_value();
        all[std::size_t(world.rank())] =
            text(trainer.progress().step, " steps", epochs.stopped() ? ", stopped" : "",
                 validated ? ", validated" : "");
      },
      20);
  for (const std::string& how : all) CHECK(how == all[0]);
  return all[0];
}

}  // namespace

TEST_CASE("all ranks end after the step for which one of them asks to stop") {
  CHECK(stop(1, 0, 6) == "5 steps, stopped");  // alone: before it
  CHECK(stop(1, 0, 1) == "0 steps, stopped");
  // On a device the next step is under way by then.
  const std::string six = on_device() ? "7 steps, stopped" : "6 steps, stopped";
  for (const int who : {0, 1, 2}) CHECK(stop(3, who, 6) == six);
  CHECK(stop(2, 1, 4) == "4 steps, stopped");  // the last of an epoch: not evaluated
  CHECK(stop(2, -1, 1) == "40 steps, validated");
}

TEST_CASE("a rank that takes no part in the loss, or has some classes only, is heard as well") {
  for (const Split& loss : {Split{.batch = 2}, Split{.channel = 2}, Split{.channel = 3}, Split{}}) {
    std::vector<Split> splits(small_network(true).graph().size(), Split{.batch = 3});
    splits.push_back(loss);
    for (const int who : {0, 1, 2}) {
      CAPTURE(loss.text(), who);
      CHECK(stop(3, who, 3, splits) == text(on_device() ? 4 : 3, " steps, stopped"));
    }
  }
}

TEST_CASE("an epoch is given out once, also where the training is to end after it") {
  const auto data = small_data();
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    std::vector<std::vector<int>> epochs(static_cast<std::size_t>(ranks));
    std::vector<int> reached(epochs.size());
    run_ranks(
        ranks,
        [&](World& world) {
          set_threads(1);
          const Network net = classifier();
          Trainer trainer(net, world, SGD{.rate = 0.05}, {.batch = 24});
          const auto rank = std::size_t(world.rank());
          for (const Epoch& epoch : trainer.fit(*data, {.epochs = 10})) {
            epochs[rank].push_back(epoch.number);
            if (epoch.number == 2) trainer.request_stop();
          }
          reached[rank] = int(trainer.progress().epoch);
        },
        20);
    // Who is not alone hears of it in a step.
    const std::vector<int> want = ranks == 1 ? std::vector{1, 2} : std::vector{1, 2, 3};
    for (std::size_t rank = 0; rank < epochs.size(); ++rank) {
      CHECK(epochs[rank] == want);
      CHECK(reached[rank] < 4);
    }
  }
}

TEST_CASE("an evaluation is left where a rank asks to stop") {
  CHECK(stop(1, 0, 0) == "4 steps, stopped");
  CHECK(stop(3, 2, 0) == "4 steps, stopped");
}

TEST_CASE("a trainer that was stopped trains on when it is asked to") {
  const auto data = small_data();
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
      const auto steps = [&](std::int64_t limit) {
        FitOptions fit{.steps = 10};
        fit.stop = [&, limit] { return trainer.progress().step >= limit; };
        for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
        return trainer.progress().step;
      };
      check(steps(3) < 6, "was not stopped");
      check(steps(100) == 10, "does not go on");
    });
  }
}

TEST_CASE("what is stopped is saved, and goes on bit by bit") {
  const Folder folder;
  const auto data = small_data();
  const std::string path = folder / "run";
  CHECK(stop(2, 1, 6, {}, path) == text(on_device() ? 7 : 6, " steps, stopped"));
  std::vector<double> resumed, whole;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    for (const bool interrupted : {false, true}) {
      Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
      if (interrupted) trainer.resume(path);
      auto l = losses(trainer, *data, 12, {.epochs = 10});
      if (world.rank() == 0) (interrupted ? resumed : whole) = l;
    }
  });
  REQUIRE(resumed.size() == (on_device() ? 5 : 6));
  CHECK(std::vector<double>(whole.end() - long(resumed.size()), whole.end()) == resumed);
}

TEST_CASE("a loop of one's own ends when all ranks know") {
  const auto data = small_data();
  std::vector<int> steps(2);
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(false), world, SGD{.rate = 0.05}, {.batch = 24});
    Loader loader = trainer.loader(*data, true);
    int& done = steps[std::size_t(world.rank())];
    for (bool stop = false; !stop; ++done) {
      if (world.rank() == 1 && done == 3) trainer.request_stop();
      stop = trainer.step(loader, 20).stop;
    }
    trainer.evaluate(*data);  // which nobody asked to stop
  });
  CHECK(steps == std::vector{4, 4});
}

TEST_CASE("an evaluation that was left is made up when the training goes on") {
  const Folder folder;
  const auto data = small_data(), validation = small_data(50, false);
  const int ranks = GENERATE(1, 2);
  const bool validated = GENERATE(true, false);
  CAPTURE(ranks, validated);
  // Asked to stop: in the middle of an epoch, after its last step, in its evaluation (3 batches).
  const std::vector<std::int64_t> stops = {3, 8, 12};
  std::vector<std::string> epochs[2];
  for (const bool interrupted : {false, true}) {
    const std::string path = folder / (interrupted ? "interrupted" : "whole");
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      for (std::size_t part = 0; part <= (interrupted ? stops.size() : 0); ++part) {
        Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9},
                        {.batch = 24});
        if (part > 0) trainer.resume(path);
        FitOptions fit{.epochs = 4, .save = path, .keep_best = true};
        if (validated) fit.validation = validation.get();
        int at_12 = 0;
        if (interrupted && part < stops.size())
          fit.stop = [&, part] {
            const std::int64_t when = stops[part], step = trainer.progress().step;
            if (when == 12 && validated) return step == 12 && ++at_12 > 2;
            const bool late = on_device() && when % 4 > 0;  // the next step is under way
            return step + (ranks > 1) * (1 + late) >= when;
          };
        auto running = trainer.fit(*data, fit);
        for (const Epoch& e : running) {
          if (running.stopped() || world.rank() != 0) continue;
          std::string s = text(e.number, ' ', exact(e.loss), ' ', exact(e.top1));
          if (e.validation) s += text(' ', exact(e.validation->loss), ' ', e.validation->samples);
          epochs[interrupted].push_back(s);
        }
        const bool last = !interrupted || part == stops.size();
        check(running.stopped() != last, "part ", part, " ends at step ", trainer.progress().step);
        check(last || trainer.progress().step == stops[part], "part ", part, " ends at step ",
              trainer.progress().step);
      }
    });
  }
  CHECK(epochs[0].size() == 4);
  CHECK(epochs[0] == epochs[1]);
  CHECK(checkpoint_files::read(folder / "whole") == checkpoint_files::read(folder / "interrupted"));
  CHECK(checkpoint_files::read(folder / "whole.best") ==
        checkpoint_files::read(folder / "interrupted.best"));
}

// ---- what is kept ----------------------------------------------------------------------------

namespace {

std::set<std::string> names(const Folder& folder) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    found.insert(entry.path().filename().string());
  return found;
}

std::int64_t step_of(const std::string& path) { return read_progress(path).step; }

void run_for(Trainer& trainer, const Dataset& data, FitOptions o) {
  for (const Epoch& epoch : trainer.fit(data, o)) (void)epoch;
}

}  // namespace

TEST_CASE("the last checkpoints stay beside the last one") {
  const Folder folder;
  const std::string path = folder / "run.safetensors";
  const auto data = small_data();
  const int ranks = GENERATE(1, 2);
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
    run_for(trainer, *data, {.epochs = 9, .steps = 9, .save = path, .save_every = 2, .keep = 2});
  });
  CHECK(names(folder) == std::set<std::string>{"run.safetensors", "run.safetensors.step-000006",
                                               "run.safetensors.step-000008"});
  CHECK(step_of(path) == 9);
  CHECK(step_of(path + ".step-000006") == 6);
  CHECK(step_of(path + ".step-000008") == 8);

  // A run that starts anew: what the earlier one left goes in its turn, last what is newest.
  run_ranks(ranks, [&](World& world) {
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
    run_for(trainer, *data, {.epochs = 9, .steps = 2, .save = path, .save_every = 1, .keep = 2});
  });
  CHECK(names(folder) == std::set<std::string>{"run.safetensors", "run.safetensors.step-000001",
                                               "run.safetensors.step-000009"});
  CHECK(step_of(path) == 2);
}

TEST_CASE("what a link for the last checkpoint leads to is kept, and stays what it is") {
  namespace fs = std::filesystem;
  const Folder folder;
  const fs::path path = folder / "run", second = folder / "run.step-000002";
  const auto data = small_data();
  const auto train_to = [&](std::int64_t steps) {
    World world;
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
    if (fs::exists(path)) trainer.resume(path);
    run_for(trainer, *data, {.steps = steps, .save = path, .save_every = 1, .keep = 9});
  };
  const auto go_back_to = [&](const char* name) {
    fs::remove(path);
    fs::create_symlink(name, path);
    train_to(4);
    CHECK_FALSE(fs::is_symlink(path));
    CHECK_FALSE(fs::is_symlink(second));
    CHECK(step_of(path) == 4);
  };
  train_to(3);
  fs::create_symlink("nowhere", folder / "run.step-000009");  // what nobody can read is no matter
  go_back_to("run.step-000002");
  CHECK(step_of(second) == 2);
  fs::rename(second, folder / "other");
  go_back_to("other");
  fs::rename(path, folder / "other");  // in its place comes another one
  CHECK(step_of(second) == 2);
  CHECK(step_of(folder / "run.step-000003") == 3);
}

TEST_CASE("what was no checkpoint is not kept, nor what has a name like one removed") {
  const Folder folder;
  const std::string path = folder / "run";
  checkpoint_files::write(path, "notes");
  for (const char* name : {"run.step-", "run.step-x", "run.step-12.txt", "runner.step-000001"})
    checkpoint_files::write(folder / name, "");
  const auto data = small_data();
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
  run_for(trainer, *data, {.epochs = 9, .steps = 3, .save = path, .save_every = 1, .keep = 1});
  CHECK(names(folder) == std::set<std::string>{"run", "run.step-000002", "run.step-", "run.step-x",
                                               "run.step-12.txt", "runner.step-000001"});
}

TEST_CASE("the best by evaluation stays, and is replaced by a better one only") {
  const Folder folder;
  const std::string path = folder / "run", best = path + ".best";
  const auto data = small_data(), validation = small_data(50, false);
  std::optional<Score> reached;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9}, {.batch = 24});
    FitOptions o{.epochs = 5, .validation = validation.get(), .save = path, .keep_best = true};
    std::optional<Score> by_hand;
    std::int64_t at = 0;
    for (const Epoch& epoch : trainer.fit(*data, o)) {
      const Score score{true, epoch.validation->loss, epoch.validation->top1};
      if (!by_hand || score.better_than(*by_hand)) by_hand = score, at = trainer.progress().step;
      const Progress p = read_progress(best, world.comm());
      check(p.score == by_hand && p.step == at, "the best is of step ", p.step, ", not ", at);
    }
    if (world.rank() == 0) reached = by_hand;
    check(!read_progress(path, world.comm()).score, "the last one has a score");
    world.comm().barrier();

    // Another run that learns nothing does not replace it.
    Trainer worse(small_network(true), world, SGD{.rate = 0}, {.batch = 24});
    run_for(worse, *data, o);
  });
  CHECK(read_progress(best).score == reached);
  CHECK(step_of(path) == 20);

  World world;
  const auto again = [&](bool validate) {
    Trainer trainer(small_network(true), world, SGD{.rate = 0}, {.batch = 24});
    run_for(trainer, *data,
            {.validation = validate ? validation.get() : nullptr, .save = path, .keep_best = true});
  };
  CHECK_THROWS_WITH(again(false),
                    ContainsSubstring("run.best: was kept as the best by evaluation, this run "
                                      "would judge by its loss in training"));
  std::filesystem::copy_file(path, best, std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(again(true),
                    ContainsSubstring("run.best: expected a checkpoint that was kept"));
}

TEST_CASE("the best of one number of images does not compare with that of another") {
  const Folder folder;
  const std::string path = folder / "run", best = path + ".best";
  const auto data = small_data(), less_data = small_data(48);
  const auto few = small_data(20, false), many = small_data(40, false);
  const bool validates = GENERATE(true, false);
  const int ranks = GENERATE(1, 2);
  CAPTURE(validates, ranks);
  int steps = 0;
  const auto train = [&](bool on_many, std::int64_t epochs, const std::string& from = {}) {
    steps = 0;
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9},
                      {.batch = 24});
      if (!from.empty()) trainer.resume(from);
      FitOptions o{.epochs = epochs, .save = path, .keep_best = true};
      if (validates) o.validation = on_many ? many.get() : few.get();
      if (world.rank() == 0) o.on_step = [&](const StepResult&) { ++steps; };
      run_for(trainer, validates || on_many ? *data : *less_data, o);
    });
  };
  const auto settings = [](const std::string& file) { return read_progress(file).settings; };
  const std::string number = validates ? "20" : "48";

  train(false, 1);
  CHECK(settings(best).at("score.images") == number);
  CHECK_FALSE(settings(path).contains("score.images"));
  const std::string before = checkpoint_files::read(best);
  CHECK_THROWS_WITH(train(true, 1),
                    ContainsSubstring(validates ? "run.best: is the best on 20 validation images, "
                                                  "but this run has 40"
                                                : "run.best: is the best on 48 training images, "
                                                  "but this run has 96"));
  CHECK(steps == 0);
  CHECK((checkpoint_files::read(best) == before));  // not to be printed

  train(false, 3, path);
  CHECK(steps > 0);
  train(false, 4, best);  // which has the setting, and the last one has not for all that
  CHECK_FALSE(settings(path).contains("score.images"));
  CHECK(settings(best).at("score.images") == number);

  // A file of an earlier version does not say.
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
  trainer.save(best, Score{validates, 1e-9, 1});
  const std::string unknown = checkpoint_files::read(best);
  train(true, 1);
  CHECK(steps > 0);
  CHECK((checkpoint_files::read(best) == unknown));  // nor is it beaten
}

TEST_CASE("better is more hits, then less loss and without validation less loss") {
  CHECK(Score{true, 3, 0.5}.better_than({true, 1, 0.4}));
  CHECK(Score{true, 1, 0.5}.better_than({true, 2, 0.5}));
  CHECK_FALSE(Score{true, 2, 0.5}.better_than({true, 2, 0.5}));
  CHECK(Score{false, 1, 0.4}.better_than({false, 2, 0.5}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(Score{false, nan, 0}.better_than({false, 2, 0}));
}

TEST_CASE("without validation the best is of least loss") {
  const Folder folder;
  const auto data = small_data();
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9}, {.batch = 24});
  double least = std::numeric_limits<double>::infinity();
  for (const Epoch& epoch :
       trainer.fit(*data, {.epochs = 3, .save = folder / "run", .keep_best = true}))
    least = std::min(least, epoch.loss);
  CHECK(read_progress(folder / "run.best").score->loss == least);
}

TEST_CASE("without validation a part of an epoch is no best") {
  const Folder folder;
  const std::string path = folder / "run", best = path + ".best";
  const auto data = small_data(), validation = small_data(50, false);
  World world;
  const auto train = [&](std::int64_t steps, bool resumes, const Dataset* judge = nullptr) {
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9}, {.batch = 24});
    if (resumes) trainer.resume(path);
    const FitOptions o{.steps = steps, .validation = judge, .save = path, .keep_best = true};
    std::vector<double> losses;
    for (const Epoch& epoch : trainer.fit(*data, o)) losses.push_back(epoch.loss);
    return losses;
  };
  train(3, false);
  CHECK(!std::filesystem::exists(best));
  train(3, true);  // which comes to the same part once more
  CHECK(!std::filesystem::exists(best));
  const std::vector<double> whole = train(4, true);
  REQUIRE(std::filesystem::exists(best));
  CHECK(read_progress(best).score == Score{false, whole.back(), read_progress(best).score->top1});
  CHECK(step_of(best) == 4);
  for (const std::int64_t steps : {5, 6, 7}) {  // however well the first batches go
    train(steps, true);
    CHECK(step_of(best) == 4);
  }

  // What was evaluated is judged by that.
  std::filesystem::remove(best);
  train(2, false, validation.get());
  CHECK(step_of(best) == 2);
}

TEST_CASE("a ruined network replaces no checkpoint, on no rank") {
  const Folder folder;
  const std::string path = folder / "run";
  std::vector<std::string> errors(2);
  const auto data = small_data();
  run_ranks(2, [&](World& world) {
    set_threads(1);
    const Network net = classifier();
    std::vector<Split> splits(net.graph().size(), Split{.batch = 2});
    for (std::size_t i = 0; i < splits.size(); ++i)
      if (net.graph()[i].name == "c") splits[i] = {.channel = 2};
    Trainer trainer(net, world, SGD{.rate = 0.05}, {.batch = 24, .splits = splits});
    run_for(trainer, *data, {.epochs = 2, .save = path, .keep = 1, .keep_best = true});
    // Of a layer that is split, one rank's part: the loss of the last step was finite.
    for (const auto& n : trainer.network().parameters())
      if (n.name == "c.weight" && world.rank() == 1)
        peek(n.parameter->value).as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    for (const std::string& each : {path, path + ".best"}) try {
        trainer.save(each);
      } catch (const PeerError& e) {
        errors[std::size_t(world.rank())] = text("of a peer: ", e.what());
      } catch (const Error& e) {
        errors[std::size_t(world.rank())] = e.what();
      }
  });
  for (const std::string& e : errors)
    CHECK(e == path +
                   ".best: not saved: after step 8 c.weight has values that are not finite: a "
                   "lower learning rate, warm-up or gradient clipping may help");
  CHECK(names(folder) == std::set<std::string>{"run", "run.best", "run.step-000004"});
  CHECK(step_of(path) == 8);
}

TEST_CASE("saving is tried before the first step") {
  const auto data = small_data();
  World world;
  const auto fit_to = [&](const std::string& path) {
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
    int steps = 0;
    FitOptions o{.steps = 1, .save = path};
    o.on_step = [&](const StepResult&) { ++steps; };
    try {
      run_for(trainer, *data, o);
    } catch (const Error& e) {
      return text(steps, " steps, ", e.what());
    }
    return std::string("saved");
  };
  const Folder folder;
  CHECK_THAT(fit_to(folder / "absent/run"), ContainsSubstring("0 steps, "));
  CHECK_THAT(fit_to("/dev/null"), ContainsSubstring("0 steps, /dev/null: cannot save here"));
  CHECK(names(folder).empty());
  CHECK(fit_to(folder / "run") == "saved");
}
