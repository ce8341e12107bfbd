// Checkpoints hold whole parameters whatever the split, and norms are those of whole parameters.
#include "catch.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/train/safetensors.hpp>

using namespace lamina;
using namespace lamina::test;
using namespace checkpoint_files;

namespace {

using Cuts = std::map<std::string, Split>;

struct Run {
  int ranks = 1;
  Cuts plan = {};
  std::string backend = "reference";
  DType dtype = DType::f64;
  bool shard = false;  // the optimizer
};

Network network() {
  Network net = small_network(true);
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

Trainer trainer(const World& world, const Optimizer& optimizer, const Run& run) {
  const Network net = network();
  return Trainer(net, world, optimizer,
                 {.batch = 24,
                  .backend = run.backend,
                  .dtype = run.dtype,
                  .splits = splits_of(net, {.splits = run.plan}, world.size()),
                  .bucket_mb = 1e-3,
                  .first_bucket_mb = 1e-4,
                  .shard_optimizer = run.shard});
}

/// Trains for `steps` steps from the start, or from the checkpoint `from`, and saves to `to`; and
/// to `to`.part before the last four of them.
std::vector<double> train(const Run& run, const Optimizer& optimizer, int steps,
                          const std::string& from, const std::string& to) {
  const auto data = small_data();
  std::vector<double> losses;
  run_ranks(run.ranks, [&](World& world) {
    set_threads(1);
    Trainer t = trainer(world, optimizer, run);
    if (!from.empty()) t.resume(from);
    Loader loader = t.loader(*data, true);
    for (int i = 0; i < steps; ++i) {
      if (steps - i == 4) t.save(to + ".part");
      const double loss = t.step(loader, 30).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
    t.save(to);
  });
  return losses;
}

std::map<std::string, std::vector<double>> tensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<double>> all;
  for (const StoredTensor& t : file.tensors()) {
    auto& values = all[t.name];
    values.resize(std::size_t(t.size()));
    file.read(t, DType::f64, values.data());
  }
  return all;
}

bool same(const std::string& a, const std::string& b) { return read(a) == read(b); }

/// Channels and input channels, whole and uneven parts, layers on fewer ranks, products; a rank
/// without any parameters.
const Run runs[] = {
    {2, {{"a", {.channel = 2}}, {"b", {.input = 2}}, {"c", {.channel = 2}}, {"d", {.input = 2}}}},
    {3, {{"b", {.channel = 3}}, {"c", {.input = 3}}, {"d", {.channel = 2}}}},
    {4,
     {{"a", {.height = 4}},
      {"b", {.batch = 2, .channel = 2}},
      {"c", {.channel = 2, .input = 2}},
      {"d", {}}}},
    {4,
     {{"a", {.height = 2, .width = 2}},
      {"b", {.channel = 2}},
      {"c", {.batch = 2, .input = 2}},
      {"d", {.channel = 4}}}},
    {2, {{"a", {}}, {"norm", {}}, {"b", {}}, {"c", {}}, {"d", {}}}},
    {2,
     {{"input", {.batch = 2, .shares = {.batch = {3, 1}}}},
      {"a", {.channel = 2, .shares = {.channel = {1, 3}}}},
      {"norm", {.height = 2, .shares = {.height = {3, 1}}}},
      {"b", {.channel = 2, .shares = {.channel = {3, 1}}}},
      {"c", {.input = 2, .shares = {.input = {3, 1}}}}}},
    {4,
     {{"a", {.height = 2, .width = 2, .shares = {.height = {3, 1}, .width = {1, 3}}}},
      {"norm", {.batch = 2, .channel = 2, .shares = {.batch = {1, 3}, .channel = {3, 1}}}},
      {"b", {.batch = 4, .shares = {.batch = {3, 1, 2, 2}}}},
      {"c", {.channel = 2, .input = 2, .shares = {.channel = {3, 1}, .input = {1, 3}}}},
      {"d", {.batch = 2, .shares = {.batch = {1, 3}}}}}},
};

}  // namespace

TEST_CASE("checkpoint: what one plan saved, any other loads, bit by bit", "[splits]") {
  const Folder folder;
  for (const auto& [backend, dtype] : {std::pair{"reference", DType::f64}, {"auto", DType::f32}}) {
    for (const Run& saves : runs) {
      Run by = saves;
      by.backend = backend, by.dtype = dtype;
      train(by, Adam{}, 2, "", folder / "saved");
      for (Run loads : {runs[0], runs[2], runs[4], runs[6], Run{}, Run{2}}) {
        CAPTURE(backend, saves.ranks, loads.ranks);
        loads.backend = backend, loads.dtype = dtype;
        train(loads, Adam{}, 0, folder / "saved", folder / "again");
        CHECK(same(folder / "again", folder / "saved"));
      }
    }
  }
}

TEST_CASE("checkpoint: under every plan, with unlike parts, too, training is that of one rank",
          "[splits]") {
  const Folder folder;
  const auto alone = train({}, Adam{}, 5, "", folder / "alone");
  const auto expected = tensors(folder / "alone");
  for (const Run& run : runs) {
    CAPTURE(run.ranks, run.plan.size());
    const auto losses = train(run, Adam{}, 5, "", folder / "shared");
    REQUIRE(losses.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i)
      CHECK(std::abs(losses[i] - alone[i]) < 1e-10 * std::abs(alone[i]));
    for (const auto& [name, values] : tensors(folder / "shared")) {
      double most = 1e-30, off = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        most = std::max(most, std::abs(expected.at(name)[i]));
        off = std::max(off, std::abs(values[i] - expected.at(name)[i]));
      }
      INFO(name);
      CHECK(off <= 1e-7 * most);  // Adam divides by what may be next to nothing
    }
  }
}

TEST_CASE("checkpoint: parameters alone load under a plan", "[splits]") {
  const Folder folder;
  train({}, SGD{}, 1, "", folder / "saved");
  const auto saved = tensors(folder / "saved");
  for (const Run& run : runs)
    run_ranks(run.ranks, [&](World& world) {
      Trainer t = trainer(world, SGD{.momentum = 0.9}, run);
      const Unmatched u = load_parameters(folder / "saved", t.network(), true, world);
      check(u.empty(), "something is left over");
      save_checkpoint(folder / "again", t.network(), {}, world);
      if (world.rank() > 0) return;
      const auto again = tensors(folder / "again");
      for (const auto& [name, values] : saved) check(again.at(name) == values, name, " differs");
      check(again.count("optimizer.0/a.weight") == 1, "the optimizer's state is missing");
    });
}

TEST_CASE("checkpoint: under a plan all ranks throw what one of them met", "[splits]") {
  const Folder folder;
  int met = 0;
  std::mutex mutex;
  run_ranks(4, [&](World& world) {
    Trainer t = trainer(world, SGD{}, runs[2]);
    const std::string save = error_of([&] { t.save(folder / "absent/c"); });
    const std::string load = error_of([&] { t.resume(folder / "absent/c"); });
    const std::lock_guard lock(mutex);
    met += save.find("absent/c") != save.npos && load.find("absent/c") != load.npos;
  });
  CHECK(met == 4);
}

TEST_CASE("resuming under a plan is bit-equal", "[splits]") {
  const Folder folder;
  for (const auto& [backend, dtype] : {std::pair{"reference", DType::f64}, {"auto", DType::f32}})
    for (const int which : {0, 1, 2}) {
      const Optimizer optimizer = which == 0   ? Optimizer(SGD{.rate = 0.05, .momentum = 0.9})
                                  : which == 1 ? Optimizer(Adam{})
                                               : Optimizer(LARS{.rate = 1});
      Run run = runs[which == 1 ? 2 : 0];
      run.backend = backend, run.dtype = dtype;
      CAPTURE(backend, which);
      auto whole = train(run, optimizer, 7, "", folder / "whole");
      whole.erase(whole.begin(), whole.begin() + 3);
      CHECK(train(run, optimizer, 4, folder / "whole.part", folder / "resumed") == whole);
      CHECK(same(folder / "resumed", folder / "whole"));
    }
}

TEST_CASE("clipping and trust ratios see whole parameters under every plan", "[splits]") {
  const Folder folder;
  const Optimizer optimizers[] = {
      Optimizer(SGD{.rate = 0.2, .momentum = 0.9}).clip_norm(0.5),
      LARS{.rate = 20, .weight_decay = 1e-3},
      Optimizer(LARS{.rate = 20, .weight_decay = 1e-3}).clip_norm(0.3),
  };
  for (const Optimizer& optimizer : optimizers) {
    const auto alone = train({}, optimizer, 5, "", folder / "alone");
    const auto wanted = tensors(folder / "alone");
    for (const Run& run : runs) {
      CAPTURE(optimizer.name(), run.ranks);
      const auto losses = train(run, optimizer, 5, "", folder / "split");
      for (std::size_t i = 0; i < losses.size(); ++i)
        CHECK(std::abs(losses[i] - alone[i]) < 1e-9 * alone[i]);
      double worst = 0;
      for (const auto& [name, values] : tensors(folder / "split"))
        for (std::size_t i = 0; i < values.size(); ++i)
          worst = std::max(worst, std::abs(values[i] - wanted.at(name)[i]));
      CHECK(worst < 1e-9);
    }
  }
}

TEST_CASE("a sharded optimizer trains as any other, and resumes bit by bit", "[splits]") {
  const Folder folder;
  const Optimizer optimizers[] = {SGD{.rate = 0.05, .momentum = 0.9}, Adam{},
                                  Optimizer(LARS{.rate = 20, .weight_decay = 1e-3}).clip_norm(0.3)};
  for (const Optimizer& optimizer : optimizers)
    for (Run run : {Run{2}, Run{3}, runs[0], runs[2]}) {
      CAPTURE(optimizer.name(), run.ranks, run.plan.size());
      const auto wanted = train(run, optimizer, 6, "", folder / "plain");
      run.shard = true;
      const auto got = train(run, optimizer, 6, "", folder / "sharded");
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::abs(got[i] - wanted[i]) < 1e-10 * wanted[i]);
      double worst = 0;
      const auto plain = tensors(folder / "plain");
      for (const auto& [name, values] : tensors(folder / "sharded"))
        for (std::size_t i = 0; i < values.size(); ++i)
          worst = std::max(worst, std::abs(values[i] - plain.at(name)[i]));
      CHECK(worst < 1e-10);

      train(run, optimizer, 4, folder / "sharded.part", folder / "resumed");
      CHECK(same(folder / "resumed", folder / "sharded"));
      train({}, optimizer, 0, folder / "sharded", folder / "again");
      CHECK(same(folder / "again", folder / "sharded"));
    }
}

TEST_CASE("master weights under a plan resume bit by bit, those of a sharded optimizer, too",
          "[splits]") {
  const Folder folder;
  const bool shard = GENERATE(false, true);
  for (Run run : {Run{2}, runs[0], runs[2], runs[4]}) {
    CAPTURE(shard, run.ranks, run.plan.size());
    run.dtype = DType::bf16, run.shard = shard;
    train(run, Adam{}, 6, "", folder / "whole");
    train(run, Adam{}, 4, folder / "whole.part", folder / "resumed");
    CHECK(same(folder / "resumed", folder / "whole"));
    train({.dtype = DType::bf16}, Adam{}, 0, folder / "whole", folder / "again");
    CHECK(same(folder / "again", folder / "whole"));
  }
}

TEST_CASE("a sharded optimizer divides its states among the ranks", "[splits]") {
  const auto bytes = [](int ranks, bool shard) {
    std::size_t most = 0;
    std::mutex mutex;
    run_ranks(ranks, [&](World& world) {
      const Trainer t = trainer(world, Adam{}, {.ranks = ranks, .shard = shard});
      check(t.state_bytes() == t.optimizer().memory(t.network()).optimizer,
            "the plan says another size");
      const std::lock_guard lock(mutex);
      most = std::max(most, t.state_bytes());
    });
    return most;
  };
  const std::size_t whole = bytes(1, false);
  CHECK(bytes(4, false) == whole);
  for (const int ranks : {2, 3, 4}) {
    const std::size_t padding = 2 * 64 * 12;  // less than a cache line per state and bucket
    CHECK(bytes(ranks, true) >= whole / std::size_t(ranks));
    CHECK(bytes(ranks, true) <= whole / std::size_t(ranks) + padding);
  }
}
