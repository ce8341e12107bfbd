// Snapshots: checkpoints in files that are memory; whatever is not whole is none, and of two the
// newest counts.
#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "comm/board.hpp"
#include "support/training.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/train/safetensors.hpp>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What a launcher gives to its ranks.
struct Launch {
  MemoryFile board, snapshots[2];
  detail::BoardMap map;

  explicit Launch(int every) {
    if (truncate(board.path().c_str(), sizeof(detail::Board)) != 0) throw Error("truncate");
    map = detail::BoardMap(board.path().c_str());
    const std::string all = text(board.path(), ',', snapshots[0].path(), ',', snapshots[1].path());
    setenv(detail::snapshot_variable, all.c_str(), 1);
    setenv(detail::every_variable, text(every).c_str(), 1);
  }
  ~Launch() {
    unsetenv(detail::snapshot_variable);
    unsetenv(detail::every_variable);
  }
};

Trainer trainer_on(const Communicator& ranks) {
  return {small_network(true), ranks, SGD{.rate = 0.05, .momentum = 0.9}, {.batch = 24}};
}

constexpr std::int64_t steps = 20;

}  // namespace

TEST_CASE("a file in memory is the same checkpoint as one on a disk") {
  const checkpoint_files::Folder folder;
  const MemoryFile file;
  World world;
  Trainer trainer = trainer_on(world);
  CHECK(in_memory(file.path()));
  CHECK_FALSE(in_memory(folder / "a"));
  trainer.save(folder / "a");
  for (int i = 0; i < 2; ++i) {  // the second over the first
    trainer.save(file.path());
    CHECK(checkpoint_files::read(file.path()) == checkpoint_files::read(folder / "a"));
  }
  CHECK_NOTHROW(trainer_on(world).resume(file.path()));
}

TEST_CASE("what is written into memory is none before it is whole") {
  const MemoryFile file;
  const std::vector<StoredTensor> tensors = {{.name = "a", .dtype = "F32", .dims = {3}}};
  const float values[] = {1, 2, 3};
  const auto written = [&](std::size_t bytes) {
    SafetensorsWriter writer(file.path(), tensors);
    writer.write(values, bytes);
    return writer;
  };
  written(sizeof values).commit();
  CHECK_NOTHROW(SafetensorsFile(file.path()));
  for (const std::size_t bytes : {std::size_t(0), std::size_t(4), sizeof values}) {
    written(bytes);  // and no commit, as of a process that was killed
    CHECK_THROWS_AS(SafetensorsFile(file.path()), Error);
  }
  written(sizeof values).commit();
  float back[3] = {};
  const SafetensorsFile whole(file.path());
  whole.read(*whole.find("a"), DType::f32, back);
  CHECK(std::equal(back, back + 3, values));
}

TEST_CASE("a training goes on from the newest snapshot, bit by bit") {
  const int ranks = GENERATE(1, 2);
  const std::int64_t lost = GENERATE(5, 6, 9, 12);  // snapshots are after 3, 6, 9, ...
  CAPTURE(ranks, lost);
  const auto data = small_data();
  std::vector<double> whole, parts, expected, found;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer alone = trainer_on(world);
    const auto all = losses(alone, *data, steps);
    if (world.rank() == 0) whole = all, expected = weights(alone.network());
  });
  const Launch launch(3);
  const auto job = [&](std::int64_t until) {
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer = trainer_on(world);
      // As if it were the first training of another process.
      if (world.rank() == 0 && launch.map->newest > 0)
        for (auto& snapshot : launch.map->snapshots)
          if (snapshot.training > 0) ++snapshot.training;
      const auto more = losses(trainer, *data, until);
      if (world.rank() == 0) parts.insert(parts.end(), more.begin(), more.end());
      if (world.rank() == 0) found = weights(trainer.network());
    });
  };
  job(lost);
  CHECK(launch.map->step == lost);
  CHECK(launch.map->made == lost);
  const std::int64_t newest = lost / 3 * 3;
  CHECK(launch.map->snapshots[std::size_t(launch.map->newest - 1)].step == newest);
  CHECK(launch.map->taken == newest / 3);
  // One that is under way does not count.
  const auto other = std::size_t(2 - launch.map->newest);
  if (truncate(launch.snapshots[other].path().c_str(), 100) != 0) throw Error("truncate");
  parts.resize(std::size_t(newest));
  job(steps);
  CHECK(launch.map->from == newest);
  CHECK(parts == whole);
  CHECK(found == expected);
}

TEST_CASE("who goes on from a snapshot says from how many ranks, and why there are others") {
  const bool in_place = GENERATE(false, true);
  const std::int64_t made = GENERATE(7, 2);  // the second one ends before there is a snapshot
  const Launch launch(3);
  const auto data = small_data();
  std::vector<Resize> seen;
  const auto job = [&](int ranks, std::int64_t until) {
    run_ranks(ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer = trainer_on(world);
      if (world.rank() == 0 && launch.map->newest > 0 && !in_place)
        for (auto& snapshot : launch.map->snapshots)
          if (snapshot.training > 0) ++snapshot.training;
      FitOptions fit{.steps = until};
      fit.on_resize = [&](const Resize& r) {
        lamina::check(trainer.progress().step == r.step, "a step was done before");
        if (world.rank() == world.size() - 1) seen.push_back(r);
      };
      for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    });
  };
  job(3, made);
  CHECK(seen.empty());
  const double last = launch.map->last;
  std::strcpy(launch.map->why.data(), "rank 1 was lost (signal 9)");
  launch.map->why_of = in_place ? 1 : launch.map->taken.load();  // of a snapshot before
  if (in_place) {
    launch.map->before.last = last;
    launch.map->losses[0].rank = 3;  // before the snapshot was taken
    launch.map->losses[1].rank = 2, launch.map->losses[2].rank = 1;
    launch.map->lost = 3, launch.map->snapshots[1].lost = 1;
    for (auto& snapshot : launch.map->snapshots)
      if (snapshot.training > 0) snapshot.training = 1;
  }
  const auto bytes = double(std::filesystem::file_size(launch.snapshots[1].path()));
  job(1, 12);
  REQUIRE(seen.size() == std::size_t(made > 3));
  if (seen.empty()) return;
  const Resize& r = seen[0];
  CHECK(r.restart);
  CHECK(r.step == 6);
  CHECK((r.from == 3 && r.to == 1));
  CHECK(r.why ==
        (in_place ? "rank 2 was lost, then rank 1 was lost" : "rank 1 was lost (signal 9)"));
  CHECK(r.bytes == bytes);
  CHECK((r.pause > 0 && r.pause < now() - last));
  CHECK_THAT(r.text(),
             ContainsSubstring("restart at step 6: 3 -> 1 ranks (" + r.why + "), pause "));
}

TEST_CASE("a restart is told before the first step after it, or not at all") {
  const Launch launch(2);
  const auto data = small_data();
  World world;
  Trainer before = trainer_on(world);
  losses(before, *data, 5);
  for (auto& snapshot : launch.map->snapshots) ++snapshot.training;
  Trainer trainer = trainer_on(world);
  REQUIRE(trainer.recover());
  auto loader = trainer.loader(*data, true);
  trainer.step(loader, 20);  // a loop of one's own
  FitOptions fit{.steps = 8};
  int told = 0;
  fit.on_resize = [&](const Resize&) { ++told; };
  for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
  CHECK(trainer.progress().step == 8);
  CHECK(told == 0);
}

TEST_CASE("a training that is not the one of the snapshot neither takes nor overwrites it") {
  const Launch launch(2);
  const auto data = small_data();
  World world;
  Trainer later = trainer_on(world);
  losses(later, *data, 5);
  launch.map->snapshots[std::size_t(launch.map->newest - 1)].training += 2;
  Trainer earlier = trainer_on(world);  // in a process that was started anew
  CHECK(losses(earlier, *data, 5).size() == 5);
  CHECK(launch.map->taken == 2);
}

TEST_CASE("snapshots elsewhere than in a launcher's memory are refused") {
  const Launch launch(2);
  World world;
  Trainer trainer = trainer_on(world);
  setenv(detail::snapshot_variable, "/dev/null,/dev/null,/dev/null", 1);
  CHECK_THROWS_WITH(trainer.recover(), ContainsSubstring("expected rank 0 on the host"));
  unsetenv(detail::snapshot_variable);
  CHECK_FALSE(trainer_on(world).recover());
  CHECK_FALSE(trainer.snapshot_due());
}
