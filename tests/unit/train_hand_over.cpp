// Trainings with layers that are split, whose ranks come and go: what goes over into the network
// that is placed next, and what is sent for it.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

struct How {
  Network net = small_network(true);
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9};
  int states = 1;  ///< of the optimizer, for each parameter that is trained
  Precision dtype = DType::f64;
  bool sharded = false;
  std::int64_t evaluation_batch = 0;
  std::vector<std::string> plans = {};  ///< on 1, 2, ... ranks
  std::vector<Split> other = {};        ///< instead of theirs, of one layer:
  std::size_t layer = 1;
};

TrainerOptions options_of(const How& how, int active) {
  const auto splits = [how](int ranks) {
    const auto n = std::size_t(ranks) - 1;
    auto all = splits_of(decide(built_in_plan(how.plans[n], how.net, 24, ranks), how.net, 24));
    if (!how.other.empty()) all[how.layer] = how.other[n];
    return all;
  };
  return {.batch = 24,
          .active = active,
          .splits_for = splits,
          .evaluation_batch = how.evaluation_batch,
          .backend = how.dtype.compute == DType::f64 ? "reference" : "auto",
          .dtype = how.dtype,
          .splits = splits(active),
          .shard_optimizer = how.sharded};
}

std::vector<std::string> any_plans(std::mt19937& random, int most) {
  const auto names = plan_names();
  std::vector<std::string> plans;
  for (int n = 1; n <= most; ++n) plans.emplace_back(names[random() % names.size()]);
  return plans;
}

std::vector<int> any_ranks(std::mt19937& random, int most, std::size_t count) {
  std::vector<int> all = {1 + int(random() % unsigned(most))};
  while (all.size() < count) {
    const int next = 1 + int(random() % unsigned(most));
    if (next != all.back()) all.push_back(next);
  }
  return all;
}

/// Elements that ranks hold afterwards and did not before.
double elements_to_send(const std::vector<WholeParameter>& before,
                        const std::vector<WholeParameter>& after, int states) {
  double elements = 0;
  for (std::size_t i = 0; i < after.size(); ++i)
    for (std::size_t r = 0; r < after[i].blocks.size(); ++r) {
      const Box& wanted = after[i].blocks[r];
      const bool was_there = r < before[i].blocks.size();
      const auto had = was_there ? common(wanted, before[i].blocks[r]).size() : 0;
      elements += double(wanted.size() - had) * (after[i].trained ? 1 + states : 1);
    }
  return elements;
}

/// Every parameter, whole, on rank 0.
std::vector<double> gathered_weights(Trainer& trainer) {
  const Folder folder;
  const std::string path = trainer.ranks().broadcast_text(folder / "all");
  trainer.save(path);
  std::vector<double> all;
  if (trainer.ranks().rank() == 0) {
    World alone;
    Trainer reader(trainer.network().network(), alone, trainer.optimizer(),
                   {.batch = 24, .backend = "reference", .dtype = DType::f64});
    reader.resume(path);
    all = weights(reader.network());
  }
  trainer.ranks().barrier();
  return all;
}

/// Whether weights are their master weights, rounded.
bool are_rounded(const PlacedNetwork& network) {
  const Backend& backend = *network.placing().backend;
  for (const NamedParameter& n : network.parameters()) {
    const Parameter& p = *n.parameter;
    const View master = p.bucket && !p.bucket->sharded ? p.bucket->master() : View();
    if (!master) continue;
    const Tensor wide(p.form.shape, master.dtype), expected(p.form.shape, p.form.dtype),
        found(p.form.shape, p.form.dtype);
    backend.copy(p.own_of(master), wide);
    backend.copy(wide, expected), backend.copy(p.value, found);
    if (!std::ranges::equal(expected.view().elements<char>(), found.view().elements<char>()))
      return false;
  }
  return true;
}

struct Trained {
  std::vector<double> losses, weights;
  double sent = 0, to_send = 0;  ///< bytes
  double padded = 1;  ///< times as many elements there are in layouts, where that is the most

  /// All that had to be sent, and nothing else but the padding of layouts.
  bool sent_just_that() const { return sent >= to_send && sent <= padded * to_send; }
};

/// The most that layouts of parameters have beside their elements.
double padding_of(const PlacedNetwork& network) {
  double most = 1;
  for (const NamedParameter& n : network.parameters()) {
    const Form& f = n.parameter->form;
    if (f.shape.size() > 0)
      most = std::max(most, double(f.bytes()) / double(f.shape.size() * size_of(f.dtype)));
  }
  return most;
}

/// Two steps on so many ranks, then on as many as come next. What is saved before and after each
/// change are the same bytes.
Trained train(const How& how, const std::vector<int>& ranks) {
  const Folder folder;
  const auto data = small_data();
  Trained found;
  bool same = true;
  std::atomic<bool> rounded = true;
  run_ranks(std::ranges::max(ranks), [&](World& world) {
    set_threads(1);
    const bool first = world.rank() == 0;
    Trainer trainer(how.net, world, how.optimizer, options_of(how, ranks[0]));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const int before = ranks[i == 0 ? 0 : i - 1], most = std::max(before, ranks[i]);
      if (i > 0 && world.rank() < most) {
        if (trainer.active()) trainer.save(folder / "before");
        std::vector<WholeParameter> had;
        if (first) had = trainer.network().all_parameters();
        if (!trainer.active()) trainer.prepare(ranks[i]);
        const Resize r = trainer.resize(ranks[i], before);
        if (trainer.active()) trainer.save(folder / "after");
        if (trainer.active() && !are_rounded(trainer.network())) rounded = false;
        if (first) {
          const auto& has = trainer.network().all_parameters();
          found.sent += r.bytes,
              found.padded = std::max(found.padded, padding_of(trainer.network()));
          found.to_send +=
              elements_to_send(had, has, how.states) * double(size_of(how.dtype.states));
          const auto bytes = [&](const char* name) {
            return checkpoint_files::read(folder / name);
          };
          same = same && bytes("before") == bytes("after") && !bytes("after").empty();
        }
      }
      if (!trainer.active()) continue;
      Loader loader = trainer.loader(*data, true);
      for (int k = 0; k < 2; ++k) {
        const double loss = trainer.step(loader, 100).loss;
        if (first) found.losses.push_back(loss);
      }
      if (how.evaluation_batch > 0) {
        const double loss = trainer.evaluate(*data).loss;
        if (first) found.losses.push_back(loss);
      }
    }
    if (trainer.active()) trainer.save(folder / "end");
  });
  CHECK(same);
  CHECK(rounded);
  World world;
  How alone = how;
  alone.plans = {"data"};
  Trainer trainer(how.net, world, how.optimizer, options_of(alone, 1));
  trainer.resume(folder / "end");
  found.weights = weights(trainer.network());
  return found;
}

/// Trains for two steps on `from` ranks, and goes over to `to`.
void save_around_resize(Trainer& trainer, const Dataset& data, const Folder& folder, int to,
                        int from) {
  if (trainer.active()) {
    Loader loader = trainer.loader(data, true);
    for (int k = 0; k < 2; ++k) trainer.step(loader, 100);
    trainer.save(folder / "before");
  }
  trainer.resize(to, from);
  trainer.save(folder / "after");
}

}  // namespace

TEST_CASE("from any plan to any plan, with what each has, and not a byte more") {
  const unsigned seed = GENERATE(range(1u, 7u));
  std::mt19937 random(seed);
  How how{.plans = any_plans(random, 5)};
  if (seed % 3 == 1) how.optimizer = AdamW{}, how.states = 2;
  if (seed % 3 == 2) how.dtype = DType::f32;
  const auto ranks = any_ranks(random, 5, 8);
  CAPTURE(seed, in_words(how.plans), in_words(ranks));
  const Trained found = train(how, ranks);
  CAPTURE(found.sent, found.to_send, found.padded);
  CHECK(found.sent_just_that());
  CHECK(found.sent > 0);
}

TEST_CASE("training goes on where it was, whatever ranks and splits are then") {
  const unsigned seed = GENERATE(range(11u, 14u));
  std::mt19937 random(seed);
  How how{.net = small_network(true, 0), .plans = any_plans(random, 4)};
  how.sharded = seed == 12;
  how.evaluation_batch = seed == 13 ? 12 : 0;
  const auto ranks = any_ranks(random, 4, 8);
  CAPTURE(seed, in_words(how.plans), in_words(ranks));
  const Trained found = train(how, ranks);
  const Trained expected = train(how, std::vector<int>(ranks.size(), 1));
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    CHECK(found.losses[i] == Approx(expected.losses[i]).epsilon(1e-9));
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    CHECK(found.weights[i] == Approx(expected.weights[i]).epsilon(1e-9).margin(1e-12));
}

TEST_CASE("an evaluation has its own batch after a resize, too") {
  How how{.evaluation_batch = 12, .plans = {"data", "owt"}};
  std::array<std::size_t, 2> found, expected;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    const auto me = std::size_t(world.rank());
    Trainer trainer(how.net, world, how.optimizer, options_of(how, 1));
    if (!trainer.active()) trainer.prepare(2);
    trainer.resize(2, 1);
    found[me] = trainer.memory().total();
    expected[me] = Trainer(how.net, world, how.optimizer, options_of(how, 2)).memory().total();
  });
  CHECK(found == expected);
  how.evaluation_batch = 0;
  std::array<std::size_t, 2> without;
  run_ranks(2, [&](World& world) {
    const Trainer trainer(how.net, world, how.optimizer, options_of(how, 2));
    without[std::size_t(world.rank())] = trainer.memory().total();
  });
  for (const std::size_t rank : {0, 1}) CHECK(without[rank] < expected[rank]);
}

TEST_CASE("what is longer than a message goes over in several") {
  How how{.net = Network({.c = 3, .h = 12, .w = 12}), .dtype = DType::f32};
  how.net.add<Linear>({.features = 5000}, "a");
  how.net.add<Linear>({.features = 4}, "b");
  how.plans = {"data", "data", "owt"};  // what the second rank got it has to give on
  const Trained found = train(how, {1, 2, 3});
  CAPTURE(found.sent, found.to_send, found.padded);
  CHECK(found.sent_just_that());
}

TEST_CASE("so it does where it does not lie in one piece with who sends it, or gets it") {
  How how{.net = Network({.c = 3, .h = 12, .w = 12}), .dtype = DType::f32};
  how.net.add<Linear>({.features = 10000}, "a");
  how.net.add<Linear>({.features = 4}, "b");
  how.plans = {"data", "data", "data"};
  how.other = {{}, {.input = 2}, {.channel = 3}};
  const Trained found = train(how, {1, 2, 3, 1});
  CAPTURE(found.sent, found.to_send, found.padded);
  CHECK(found.sent_just_that());
}

TEST_CASE("blocks that lie alike in a layout of the back end's are not taken for one another") {
  How how{.dtype = DType::f32, .plans = {"data", "data", "data", "data"}};
  how.other = {{}, {.channel = 2}, {.channel = 2}, {.batch = 2, .channel = 2}};
  how.layer = 4;  // b, of 16 channels to 16
  const Trained found = train(how, {2, 4, 3, 1, 4});
  CAPTURE(found.sent, found.to_send, found.padded);
  CHECK(found.sent_just_that());
}

TEST_CASE("a sharded optimizer and weights with master weights go over whole") {
  const bool sharded = GENERATE(false, true);
  const bool narrow = GENERATE(false, true);
  std::mt19937 random(sharded + 2 * narrow);
  How how{.optimizer = AdamW{}, .states = 2, .sharded = sharded};
  how.dtype = narrow ? DType::bf16 : DType::f32;
  how.plans = any_plans(random, 4);
  const auto ranks = any_ranks(random, 4, 6);
  CAPTURE(sharded, narrow, in_words(how.plans), in_words(ranks));
  train(how, ranks);
}

TEST_CASE("what ranks put states together of counts as sent") {
  How how{.net = small_network(false), .sharded = true, .plans = {"data", "data"}};
  const Trained found = train(how, {2, 1});
  CHECK(found.to_send == 0);  // the rank that stays has all weights
  // Each of the two has half of the momentum, and gets the other half.
  const double momentum = double(size_of(DType::f64)) * double(found.weights.size());
  CAPTURE(found.sent, momentum);
  CHECK(found.sent >= momentum);
  CHECK(found.sent < 1.1 * momentum);
}

TEST_CASE("running averages of each rank's own go over as their mean") {
  const Folder folder;
  const auto data = small_data();
  How how{.net = local_norm_network(), .plans = {"data", "owt", "owt", "data"}};
  std::vector<double> before, after;
  run_ranks(4, [&](World& world) {
    set_threads(1);
    Trainer trainer(how.net, world, how.optimizer, options_of(how, 3));
    save_around_resize(trainer, *data, folder, 4, 3);
  });
  World world;
  how.plans = {"data"};
  for (const auto& [name, to] : {std::pair("before", &before), {"after", &after}}) {
    Trainer trainer(how.net, world, how.optimizer, options_of(how, 1));
    trainer.resume(folder / name);
    *to = weights(trainer.network());
  }
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i)
    CHECK(after[i] == Approx(before[i]).epsilon(1e-12).margin(1e-15));
}

TEST_CASE("running averages of each rank's own go over as they are to as many") {
  const Folder folder;
  const auto data = small_data();
  const Network net = local_norm_network();
  const auto splits = [&](int ranks) {
    std::vector<Split> all(net.graph().size(), Split{.batch = ranks});
    all[2] = all[5] = {.batch = 2};  // batch norm
    return all;
  };
  run_ranks(3, [&](World& world) {
    set_threads(1);
    Trainer trainer(net, world, SGD{.rate = 0.05},
                    {.batch = 24, .active = 2, .splits_for = splits, .splits = splits(2)});
    save_around_resize(trainer, *data, folder, 3, 2);
  });
  CHECK((checkpoint_files::read(folder / "before") == checkpoint_files::read(folder / "after")));
}

TEST_CASE("ranks with unlike numbers of rows make ready what has other layouts for them") {
  // A linear layer of two rows keeps its weights otherwise than of one.
  const Network net = make_model("lenet");
  const auto data = synthetic({.limit = 4000, .channels = 1, .height = 28, .width = 28});
  std::vector<int> resized;
  std::vector<std::string> refused;
  run_ranks(3, [&](World& world) {
    set_threads(1);
    Trainer trainer(net, world, SGD{.rate = 0.01},
                    {.batch = 4, .active = 1, .shard_optimizer = true});
    bool asked = false;
    FitOptions fit{.epochs = 1000, .steps = 200};
    fit.resize = [&] {
      return trainer.progress().step >= 2 && !std::exchange(asked, true) ? 3 : 0;
    };
    fit.on_step = [&](const StepResult&) {  // or the training is over before all are ready
      if (world.rank() == 0 && resized.empty() && refused.empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resized.push_back(r.to);
    };
    fit.on_refused = [&](const std::string& why) { refused.push_back(why); };
    for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
  });
  CHECK(refused == std::vector<std::string>());
  CHECK(resized == std::vector{3});
}

TEST_CASE("fit() makes ready what comes next while all train, and hands over") {
  const auto data = small_data();
  How how{.net = small_network(true, 0), .plans = {"data", "owt", "filter", "spatial"}};
  const std::vector<std::pair<std::int64_t, int>> changes = {{2, 4}, {20, 3}, {40, 1}, {60, 2}};
  const auto train = [&](int started, int active, bool changed) {
    std::vector<double> found;
    std::vector<int> resized;
    run_ranks(started, [&](World& world) {
      set_threads(1);
      Trainer trainer(how.net, world, how.optimizer, options_of(how, active));
      std::size_t next = 0;
      FitOptions fit{.epochs = 1000, .steps = 400};
      fit.resize = [&] {
        const bool due =
            changed && next < changes.size() && trainer.progress().step >= changes[next].first;
        return due ? changes[next++].second : 0;
      };
      fit.on_step = [&](const StepResult&) {
        // Or the training is over before all are ready.
        if (world.rank() == 0 && resized.size() < next)
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
      };
      fit.on_resize = [&](const Resize& r) {
        if (world.rank() == 0) resized.push_back(r.to);
      };
      for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
      if (!trainer.active()) return;
      const auto mine = gathered_weights(trainer);
      if (world.rank() == 0) found = mine;
    });
    if (changed) CHECK(resized == std::vector{4, 3, 1, 2});
    return found;
  };
  const auto expected = train(1, 1, false), found = train(4, 2, true);
  REQUIRE((found.size() == expected.size() && !found.empty()));
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-7).margin(1e-9));
}
