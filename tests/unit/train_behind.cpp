// Devices run behind their caller: steps may overlap, and the host waits for nothing in a step.
#include "catch.hpp"
#include "support/device_seed.hpp"
#include "support/operands.hpp"
#include "support/peek.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <lamina/profile/measure.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  std::string name;
  Optimizer optimizer;
  TrainerOptions options = {};
  int ranks = 1;
};

/// All of them in the first of the orders in which a device may run things; in each other a third.
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Optimizer optimizer, int ranks = 1) {
    all.push_back({std::move(name), std::move(optimizer), {}, ranks});
    TrainerOptions& o = all.back().options;
    o.batch = 12, o.backend = "reference", o.bucket_mb = 0.001, o.first_bucket_mb = 0;
    return &o;
  };
  add("momentum", SGD{.rate = 0.05, .momentum = 0.9});
  add("f64", SGD{.rate = 0.05})->dtype = DType::f64;
  add("clipping", Optimizer(Adam{}).clip_norm(0.1), 2);
  add("LARS", LARS{.rate = 0.5, .weight_decay = 0.01}, 2);
  add("sharded LARS", Optimizer(LARS{.rate = 0.5}).clip_norm(0.1), 2)->shard_optimizer = true;
  add("micro-batches", SGD{.rate = 0.05})->micro_batch = 4;
  TrainerOptions* scaled = add("loss scale", SGD{.rate = 0.05}, 2);
  scaled->dtype = DType::f16, scaled->loss_scaling = LossScaling{1024, 2};
  add("workers", SGD{.rate = 0.05})->workers = 4;
  add("workers, clipping", Optimizer(AdamW{}).clip_norm(1), 2)->workers = 6;
  // The loss is not on all ranks.
  const std::vector<Split> two(small_network(false).graph().size(), Split{.batch = 2});
  TrainerOptions* o = add("few samples", SGD{.rate = 0.05}, 3);
  o->batch = 2, o->splits = two;
  // Rows of neighbours come as halos.
  std::vector<Split> rows = two;
  const Network net = small_network(false);
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (net.graph()[i].layer && net.graph()[i].layer->type() == "Conv2D") rows[i] = {.height = 2};
  add("rows", SGD{.rate = 0.05}, 2)->splits = rows;
  o = add("micro-batches of few samples", Optimizer(AdamW{}).clip_norm(1), 3);
  o->batch = 6, o->micro_batch = 2, o->splits = two;
  if (std::uint64_t which = device_seed(); which > 0)
    std::erase_if(all, [&](const Case&) { return which++ % 3 != 0; });
  return all;
}

}  // namespace

TEST_CASE("images as bytes train to the same bits as numbers do") {
  const auto bytes = small_data(48);
  const Planes planes(*bytes);
  std::vector<Case> all = cases();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    all.push_back({std::string(name(dtype)), SGD{.rate = 0.05}, {}, 2});
    TrainerOptions& o = all.back().options;
    o.batch = 12, o.backend = "reference", o.dtype = dtype;
  }
  for (const Case& c : all) {
    CAPTURE(c.name);
    std::vector<double> losses[2], values[2];
    for (const bool as_bytes : {false, true})
      run_ranks(c.ranks, [&](World& world) {
        set_threads(1);
        const Dataset& data = as_bytes ? *bytes : static_cast<const Dataset&>(planes);
        Trainer trainer(small_network(false), world, c.optimizer, c.options);
        auto loader = trainer.loader(data, true);
        const Batch& looked_at = loader.next();
        lamina::check(looked_at.size == 0 || bool(looked_at.pixels) == as_bytes,
                      "images of another kind");
        loader.seek(0);
        std::vector<double> found;
        for (int i = 0; i < 5; ++i) {
          trainer.start(loader, 5);
          if (trainer.under_way() > 1) found.push_back(trainer.finish().loss);
        }
        found.push_back(trainer.finish().loss);
        found.push_back(trainer.evaluate(data).loss);
        if (world.rank() == 0)
          losses[as_bytes] = found, values[as_bytes] = weights(trainer.network());
      });
    CHECK(losses[0].size() == 6);
    CHECK(losses[0] == losses[1]);
    CHECK(values[0] == values[1]);
  }
}

TEST_CASE("steps that overlap do what they do one after the other") {
  const auto data = small_data(48);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    std::vector<double> losses[2], values[2];
    for (const bool overlap : {false, true})
      run_ranks(c.ranks, [&](World& world) {
        set_threads(1);
        Trainer trainer(small_network(false), world, c.optimizer, c.options);
        auto loader = trainer.loader(*data, true);
        std::vector<double> found;
        for (int i = 0; i < 5; ++i) {
          trainer.start(loader, 5);
          if (trainer.under_way() > int(overlap)) found.push_back(trainer.finish().loss);
        }
        while (trainer.under_way() > 0) found.push_back(trainer.finish().loss);
        if (world.rank() == 0)
          losses[overlap] = found, values[overlap] = weights(trainer.network());
      });
    CHECK(losses[0].size() == 5);
    CHECK(losses[0] == losses[1]);
    CHECK(values[0] == values[1]);
  }
}

TEST_CASE("in a step the host waits for nothing that the step does") {
  if (!on_device()) return;
  const auto data = small_data(48);
  for (const Case& c : cases())
    run_ranks(c.ranks, [&](World& world) {
      set_threads(1);
      Trainer trainer(small_network(false), world, c.optimizer, c.options);
      auto loader = trainer.loader(*data, true);
      const auto overlapped = [&](int steps) {
        for (int i = 0; i < steps; ++i) {
          trainer.start(loader, 10);
          if (trainer.under_way() > 1) trainer.finish();
        }
      };
      overlapped(3);
      const std::uint64_t before = trainer.stream().stalls();
      overlapped(4);
      lamina::check(trainer.stream().stalls() == before, c.name, ": waited ",
                    trainer.stream().stalls() - before, " times in 4 steps");
      trainer.finish();  // the last one, which nothing has been started behind
      lamina::check(trainer.stream().stalls() == before + 1, c.name, ": a wait was not counted");
    });
}

TEST_CASE("steps that a device has recorded do what they do one by one") {
  if (!on_device()) return;
  const auto data = small_data(48), validation = small_data(20);
  constexpr int steps = 9;
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    std::vector<double> losses[2], values[2];
    for (const bool graph : {false, true})
      run_ranks(c.ranks, [&](World& world) {
        set_threads(1);
        TrainerOptions o = c.options;
        o.graph = graph;
        o.schedule = {.kind = Schedule::Kind::cosine, .warmup = 0.5};
        const bool normalizes = o.splits.empty() && o.workers == 0;
        Trainer trainer(small_network(normalizes), world, c.optimizer, o);
        auto loader = trainer.loader(*data, true);
        std::vector<double> found;
        for (int i = 0; i < steps; ++i) {
          trainer.start(loader, steps);
          if (trainer.under_way() > 1 || i == 6) found.push_back(trainer.finish().loss);
          if (i == 6) {
            found.push_back(trainer.finish().loss);
            found.push_back(trainer.evaluate(*validation).loss);
          }
        }
        found.push_back(trainer.finish().loss);
        const bool can = world.size() == 1 || over_device();
        const std::string expected = !graph ? "steps are not recorded: that was not asked for"
                                     : can  ? "steps are recorded"
                                            : "steps are not recorded: a step has collectives that "
                                              "go by way of the host";
        lamina::check(trainer.graph() == expected, c.name, ": ", trainer.graph());
        if (world.rank() == 0) losses[graph] = found, values[graph] = weights(trainer.network());
      });
    CHECK(losses[0].size() == steps + 1);
    CHECK(losses[0] == losses[1]);
    CHECK(values[0] == values[1]);
  }
}

TEST_CASE("a step must be finished before what reads the parameters, and two can be under way") {
  World world;
  const auto data = small_data(48);
  Trainer trainer(small_network(false), world, SGD{}, {.batch = 12, .backend = "reference"});
  auto loader = trainer.loader(*data, true);
  CHECK_THROWS_WITH(trainer.finish(), "finish: no step is under way: expected start()");
  trainer.start(loader, 10);
  CHECK_THROWS_WITH(trainer.evaluate(*data), "evaluate: a step is under way: expected finish()");
  CHECK_THROWS_WITH(trainer.save("no.safetensors"), ContainsSubstring("save: a step is under way"));
  trainer.start(loader, 10);
  CHECK(trainer.under_way() == 2);
  CHECK_THROWS_WITH(trainer.start(loader, 10), "start: 2 steps are under way: expected finish()");
  CHECK(trainer.finish().step == 1);
  CHECK(trainer.finish().step == 2);
  CHECK(trainer.progress().batch == 2);
  CHECK_NOTHROW(trainer.evaluate(*data));
}

TEST_CASE("a recorded step has its spans when it ends, though nobody has waited for it") {
  const auto on = reference_backend();
  const Form form{{1, 3, 1, 1}, DType::f64, {}};
  const Tensor x(form, on->memory()), sum({1, 1, 1, 1}, DType::f64, on->memory());
  const auto squares = on->squares({{x, sum}});
  Stream stream;
  Profiler profiler;
  profiler.start(stream);
  for (int step = 0; step < 2; ++step) {
    if (step > 0) profiler.begin_step();
    for (int i = 0; i < 5; ++i) squares->run(stream, Pass::update);
    profiler.end_step();
    CHECK(profiler.last_step().size() == 5);
  }
  profiler.stop();
}

TEST_CASE("a profile of steps that overlap has the kernels and collectives of those one by one") {
  const auto data = small_data(48);
  for (const Case& c : cases()) {
    if (c.name != "momentum" && c.name != "rows" && c.name != "clipping") continue;
    CAPTURE(c.name);
    std::set<std::string> seen[2];  // in any order
    std::string turns;
    bool behind = false;
    run_ranks(c.ranks, [&](World& world) {
      set_threads(1);
      for (const bool overlap : {false, true}) {
        Trainer trainer(small_network(false), world, c.optimizer, c.options);
        auto loader = trainer.loader(*data, true);
        Stream& stream = trainer.stream();
        for (int i = 0; i < 8; ++i) trainer.step(loader, 40);  // steps are recorded by the device
        std::string told;
        const auto start = [&] {
          told += stream.recorder() ? 'S' : 's', trainer.start(loader, 40);
        };
        const auto finish = [&] { told += 'f', trainer.finish(); };
        std::set<std::size_t> kernels;
        ProfileOptions options{.warmup = 1, .steps = 4, .alone = false};
        options.on_step = [&](const Profiler& p) {
          kernels.insert(
              std::size_t(std::ranges::count(p.last_step(), Lane::compute, &Span::lane)));
        };
        const auto measured = [&](auto&&... step) {
          return profile_steps(trainer.network(), stream, trainer.ranks(), c.optimizer.rule(),
                               options, step...);
        };
        const double begin = now();
        const Profile p = overlap ? measured(start, finish) : measured([&] { start(), finish(); });
        const double sum = options.steps * (p.clean.min + p.end_to_end.min);
        lamina::check(sum < now() - begin, "times overlap");
        lamina::check(kernels.size() == 1, "a step has kernels of another one");
        lamina::check(trainer.under_way() == 0 && !stream.recorder(), "steps are left");
        if (world.rank() > 0) continue;
        for (const ProfileRow& r : p.rows)
          for (const auto& k : r.kernels)
            if (k.lane != Lane::wait)  // only where there is something to wait for
              seen[overlap].insert(text(r.name, ' ', name(r.pass), ' ', k.what, ' ', k.calls));
        turns = told, behind = trainer.ahead();
      }
    });
    CHECK(seen[1].size() > 20);
    CHECK(seen[0] == seen[1]);
    CHECK(turns == (behind ? "sfssfSfsfSfsfSfsfSff" : "sfsfSfsfSfsfSfsfSf"));
  }
}

TEST_CASE("steps of a profile do not overlap where some ranks compute on the host") {
  if (!has_unlike_backends()) return;
  const auto data = small_data(48);
  std::string turns[2];
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(false), world, SGD{},
                    {.batch = 12, .backend = world.rank() ? "onednn" : "reference"});
    auto loader = trainer.loader(*data, true);
    std::string& told = turns[world.rank()];
    const auto start = [&] {
      told += trainer.stream().recorder() ? 'S' : 's', trainer.start(loader, 40);
    };
    const auto finish = [&] { told += 'f', trainer.finish(); };
    const Profile p = profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                                    UpdateRule(), {.warmup = 1, .steps = 2}, start, finish);
    lamina::check(world.rank() > 0 || p.ranks == 2, "not a profile of two ranks");
  });
  CHECK(turns[0] == turns[1]);
  CHECK(turns[0].starts_with("sfsfSfsfSf"));
}

TEST_CASE("a stream that goes has run what was put into it") {
  run_ranks(2, [](World& world) {
    const auto on = reference_backend();
    MemorySpace& memory = on->memory();
    const Tensor x({1, 3, 1, 1}, DType::f64, memory), sum({1, 1, 1, 1}, DType::f64, memory);
    const Communicator& ranks = world;
    double found = 0;
    {
      Stream stream;
      const double ones[] = {1, 1, 1};
      put_bytes(stream, ones, x);
      ranks.all_reduce(stream, Pass::forward, x).wait(stream);
      on->squares({{x, sum}})->run(stream, Pass::forward);
      get_bytes(stream, sum, &found);
    }
    lamina::check(found == 12, "got ", found);
  });
}
