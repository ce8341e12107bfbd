// How steps are measured: clean, recorded and without communication; who listens; what is kept of
// the last step.
#include "catch.hpp"
#include "profile_small.hpp"
#include "support/splits.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/profile/listen.hpp>
#include <lamina/train/trainer.hpp>

#include <limits>
#include <optional>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Counts up by one cycle and two instructions whenever it is read.
class Ticks final : public Counters {
 public:
  Counts read() override {
    ++reads;
    return {.cycles = double(reads), .instructions = 2.0 * reads};
  }
  int reads = 0;
};

}  // namespace

TEST_CASE("a bucket's reduction is shared among its layers by bytes") {
  const PlacedNetwork net = place(small());
  Profiler p;
  // Backward ends with conv, which fills the bucket that it shares with fc.
  const int conv = step_of(net, "conv");
  p.begin_step();
  p.record({conv, Pass::weight_grad, Lane::communication, "all_reduce", 1, 2, 4096, 8192});
  p.record({conv, Pass::weight_grad, Lane::wait, "all_reduce", 1.5, 2, 0});
  p.end_step();
  const Profile profile = make_profile(net, p, {}, {});
  const double conv_bytes = 4 * (4 * 3 * 9 + 4), fc_bytes = 4 * (256 * 5 + 5);
  const double part = conv_bytes / (conv_bytes + fc_bytes);
  const ProfileRow& first = row(profile, "conv", Pass::weight_grad);
  const ProfileRow& last = row(profile, "fc", Pass::weight_grad);
  CHECK(first.comm.mean == Approx(part));
  CHECK(last.comm.mean == Approx(1 - part));
  CHECK(first.exposed.mean == Approx(0.5 * part));
  CHECK(last.exposed.mean == Approx(0.5 * (1 - part)));
  CHECK(first.comm_bytes == Approx(4096 * part));
  CHECK(last.wire_bytes == Approx(8192 * (1 - part)));
  REQUIRE(last.kernels.size() == 2);
  CHECK(last.kernels[0].calls == Approx(1 - part));
  CHECK(profile.sum_layers.mean == Approx(0.5));
}

TEST_CASE("the weights that a sharded optimizer gathers are shared likewise") {
  const double conv_bytes = 4 * (4 * 3 * 9 + 4), fc_bytes = 4 * (256 * 5 + 5);
  const double part = conv_bytes / (conv_bytes + fc_bytes);
  std::vector<Profile> profiles(2);
  run_ranks(2, [&](World& world) {
    Trainer trainer(small(), world, SGD{.rate = 0.1},
                    {.batch = 4, .backend = "reference", .shard_optimizer = true});
    Profiler p;
    const int conv = step_of(trainer.network(), "conv");
    p.begin_step();
    p.record({conv, Pass::update, Lane::compute, "update", 0, 1, 0});
    p.record({conv, Pass::update, Lane::communication, "all_gather", 1, 2, 4096, 2048});
    p.record({conv, Pass::update, Lane::wait, "all_gather", 1.5, 2, 0});
    p.end_step();
    profiles[std::size_t(world.rank())] = make_profile(trainer.network(), p, {}, world.comm());
  });
  for (const Profile& profile : profiles) {
    const ProfileRow& first = row(profile, "conv", Pass::update);
    const ProfileRow& last = row(profile, "fc", Pass::update);
    CHECK(first.work.flops == 2 * 112 / 2);  // each rank updates a half
    CHECK(last.work.bytes == 3 * 4 * 1285 / 2.0);
    CHECK(first.time.mean == Approx(part));
    CHECK(last.time.mean == Approx(1 - part));
    CHECK(first.comm_bytes == Approx(4096 * part));
    CHECK(last.comm_bytes == Approx(4096 * (1 - part)));
    CHECK(last.wire_bytes == Approx(2048 * (1 - part)));
    CHECK(first.exposed.mean == Approx(0.5 * part));
    CHECK(last.exposed.mean == Approx(0.5 * (1 - part)));
    CHECK(profile.sum_layers.mean == Approx(1.5));
  }
}

TEST_CASE("a rank that has less of a layer, or nothing, counts for as much less") {
  const double whole = 2.0 * 4 * (4 * 64) * 27;  // FLOP of the convolution, of four images
  std::vector<Profile> profiles;
  const auto run = [&](TrainerOptions how, const std::map<std::string, Split>& splits,
                       int ranks = 2) {
    profiles.assign(std::size_t(ranks), {});
    how.batch = 4, how.backend = "reference";
    if (!splits.empty()) how.splits = splits_of(small(), {.splits = splits}, ranks);
    run_ranks(ranks, [&](World& world) {
      Trainer trainer(small(), world, SGD{.rate = 0.1}, how);
      Profiler p;
      const int conv = step_of(trainer.network(), "conv");
      const bool runs = splits.empty() || ranks > 2 || world.rank() == 0;
      p.begin_step();
      if (runs) p.record({conv, Pass::forward, Lane::compute, "conv", 0, 1, 0});
      p.end_step();
      profiles[std::size_t(world.rank())] = make_profile(trainer.network(), p, {}, world.comm());
    });
  };
  const auto check_all = [&](double flops, double per_second) {
    for (const Profile& profile : profiles) {
      const ProfileRow& conv = row(profile, "conv", Pass::forward);
      CHECK(conv.work.flops == Approx(flops));
      CHECK(conv.flops_per_second() == Approx(per_second));
    }
  };
  run({}, {{"conv", {}}});  // all on rank 0, in a second
  check_all(whole / 2, whole);
  run({}, {{"conv", {.channel = 2, .shares = {.channel = {3, 1}}}}});
  check_all(whole / 2, whole);
  run({.workers = 4, .balance = {1, 3}}, {});  // a second on each
  check_all(whole / 2, whole / 2);
  // Samples of y are whole, for what ranks have of it is added up.
  run({}, {{"conv", {.batch = 2, .input = 2, .shares = {.input = {2, 1}}}}}, 4);
  check_all(whole / 4, whole / 4);
}

TEST_CASE("in bf16 gradients of weights have bytes of f32") {
  World world;
  Trainer trainer(small(), world, SGD{.rate = 0.1},
                  {.batch = 4, .backend = "reference", .dtype = DType::bf16});
  Profiler p;
  p.begin_step();
  double at = 0;
  for (const char* layer : {"conv", "fc"})
    for (const Pass pass : {Pass::forward, Pass::weight_grad}) {
      p.record({step_of(trainer.network(), layer), pass, Lane::compute, "kernel", at, at + 1, 0});
      at += 1;
    }
  p.end_step();
  const Profile profile = make_profile(trainer.network(), p, {}, {});
  const auto bytes = [&](const char* layer, Pass pass) {
    return row(profile, layer, pass).work.bytes;
  };
  const double conv = 2 * (4 * 3 * 64 + 4 * 4 * 64 + 108), fc = 2 * (4 * 256 + 4 * 5 + 256 * 5);
  CHECK(bytes("conv", Pass::forward) == conv);
  CHECK(bytes("conv", Pass::weight_grad) == conv + 2 * 112);
  CHECK(bytes("fc", Pass::weight_grad) == fc + 2 * 1285);
}

TEST_CASE("the update of a bucket is shared likewise, with all that is known of it") {
  const PlacedNetwork net = place(small());
  const int conv = step_of(net, "conv"), fc = step_of(net, "fc");
  const double part = 112.0 / (112 + 1285);  // of the bytes
  const auto of = [&](bool one_by_one) {
    Profiler p;
    for (const double time : {1.0, 3.0}) {
      p.begin_step();
      if (one_by_one) p.record({fc, Pass::update, Lane::compute, "update", 0, 10, 0});
      p.record({conv, Pass::update, Lane::compute, "update", 10, 10 + time, 0});
      p.end_step();
    }
    Profile profile = make_profile(net, p, {}, {});
    add_alone(profile, net, p, {});
    return profile;
  };
  const Profile at_once = of(false), one_by_one = of(true);
  for (const auto& [name, its] : {std::pair("conv", part), {"fc", 1 - part}}) {
    const ProfileRow& r = row(at_once, name, Pass::update);
    CHECK(r.time.mean == Approx(2 * its));
    CHECK(r.alone.mean == Approx(2 * its));
    CHECK(r.step_min == Approx(its));
    CHECK(r.step_total_std == Approx(std::sqrt(2) * its));
    REQUIRE(r.kernels.size() == 1);
    CHECK(r.kernels[0].calls == Approx(its));
    CHECK(r.kernels[0].seconds == Approx(2 * its));
  }
  CHECK(at_once.compute.mean == Approx(2));
  CHECK(row(one_by_one, "conv", Pass::update).time.mean == Approx(2));
  CHECK(row(one_by_one, "fc", Pass::update).time.mean == Approx(10));
}

TEST_CASE("a layer with a bucket of its own keeps its reduction") {
  const PlacedNetwork net = place(small(), {}, 0);
  Profiler p;
  p.begin_step();
  p.record(
      {step_of(net, "conv"), Pass::weight_grad, Lane::communication, "all_reduce", 1, 2, 64, 64});
  p.end_step();
  const Profile profile = make_profile(net, p, {}, {});
  CHECK(row(profile, "conv", Pass::weight_grad).comm.mean == Approx(1));
  CHECK(profile.rows.size() == 1);
}

TEST_CASE("kernels are timed with and without communication, steps clean and recorded") {
  std::vector<Profile> profiles(2);
  int clean = 0, recorded = 0, silent = 0;
  run_ranks(2, [&](World& world) {
    Trainer trainer(small(), world, SGD{.rate = 0.1}, {.batch = 4, .backend = "reference"});
    const std::vector<float> images(2 * 3 * 64, 0.5f);
    const std::vector<std::int32_t> labels(2, 1);
    const Batch batch{
        .images = images.data(), .targets = labels.data(), .size = 2, .global_valid = 4};
    int on_step = 0;
    const auto step = [&] {
      if (world.rank() == 0) {
        const bool with = trainer.stream().recorder() != nullptr;
        ++(trainer.stream().silent() ? silent : with ? recorded : clean);
      }
      trainer.step(batch, 10, 10);
    };
    ProfileOptions options{.warmup = 2, .steps = 3};
    options.on_step = [&](const Profiler& p) {
      if (p.steps() == on_step + 1 && !p.last_step().empty()) ++on_step;
    };
    profiles[std::size_t(world.rank())] =
        profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                      trainer.optimizer().rule(), options, step);
    if (world.rank() != 0) return;  // Catch2 takes one thread
    CHECK(on_step == 3);
    CHECK(trainer.stream().recorder() == nullptr);
    CHECK(!trainer.stream().silent());
  });
  CHECK(clean == 2 + 3);
  CHECK(recorded == 3);
  CHECK(silent == 1 + 3);
  for (const Profile& p : profiles) {
    CHECK(p.steps == 3);
    CHECK(p.clean.mean > 0);
    CHECK(p.clean.max == profiles[0].clean.max);
    CHECK(p.end_to_end.max == profiles[0].end_to_end.max);
    CHECK(p.overhead == profiles[0].overhead);
    CHECK(p.hosts.size() == 2);
    for (const ProfileRow& r : p.rows) {
      if (r.layer < 0) continue;
      INFO(r.name << ' ' << name(r.pass));
      CHECK((r.time.mean > 0) == (r.alone.mean > 0));
    }
    const ProfileRow& dw = row(p, "conv", Pass::weight_grad);
    const double bytes = 4 * (4 * 3 * 9 + 4);
    CHECK(dw.comm.mean > 0);
    CHECK(dw.wire_bytes == Approx(dw.comm_bytes));  // 2 (n - 1) / n = 1 for two ranks
    CHECK(dw.comm_bytes >= bytes);
  }
}

TEST_CASE("a step without communication may end in any loss") {
  int steps = 0;
  run_ranks(2, [&](World& world) {
    Trainer trainer(small(), world, SGD{.rate = 0.1}, {.batch = 4, .backend = "reference"});
    const std::vector<float> images(2 * 3 * 64, std::numeric_limits<float>::infinity());
    const std::vector<std::int32_t> labels(2, 1);
    const Batch batch{
        .images = images.data(), .targets = labels.data(), .size = 2, .global_valid = 4};
    trainer.stream().silence(true);
    trainer.step(batch, 10, 10);
    if (world.rank() == 0) ++steps;
    trainer.stream().silence(false);
    try {
      trainer.step(batch, 10, 10);
    } catch (const Error&) {
      if (world.rank() == 0) ++steps;
    }
  });
  CHECK(steps == 2);
}

TEST_CASE("a silent stream starts no collective") {
  run_ranks(2, [](World& world) {
    Stream stream;
    const Tensor x({1, 4, 1, 1}, DType::f32);
    const auto sum = [&] {
      for (float& v : x.elements<float>()) v = 1;
      world.comm().all_reduce(stream, Pass::forward, x).wait(stream);
      return x.as<float>()[3];
    };
    stream.silence(true);
    const float alone = world.rank() == 0 ? sum() : 1;  // nobody waits for the other
    stream.silence(false);
    const float both = sum();
    if (world.rank() != 0) return;  // Catch2 takes one thread
    CHECK(alone == 1);
    CHECK(both == 2);
  });
}

TEST_CASE("a profile keeps the last step of all ranks, and what layers keep") {
  std::vector<Profile> profiles(2);
  std::vector<std::optional<PlacedNetwork>> networks(2);
  const Optimizer planned = Adam{};
  run_ranks(2, [&](World& world) {
    PlacedNetwork& net = networks[std::size_t(world.rank())].emplace(place(small(), world));
    const Tensor states = planned.attach(net);
    profiles[std::size_t(world.rank())] = profile(net, world.comm(), {.warmup = 1, .steps = 2});
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Profile& p = profiles[rank];
    const PlacedNetwork& net = *networks[rank];
    REQUIRE(p.timeline.size() == 2);
    for (const auto& spans : p.timeline) {
      bool reduced = false, convolved = false;
      double last = 0;
      for (const TimelineSpan& s : spans) {
        CHECK(s.begin >= last);  // in order, and after the step began
        CHECK(s.end >= s.begin);
        last = s.begin;
        REQUIRE(s.layer < int(p.layers.size()));
        const std::string layer = s.layer < 0 ? "" : p.layers[std::size_t(s.layer)];
        reduced |= s.lane == Lane::communication && s.what == "all_reduce" && s.bytes > 0;
        convolved |= layer == "conv" && s.pass == Pass::forward && s.lane == Lane::compute;
      }
      CHECK(reduced);
      CHECK(convolved);
    }
    CHECK(p.memory == planned.memory(net));
    std::vector<std::string> names;
    for (const LayerMemory& m : p.layer_memory) {
      names.push_back(m.name);
      CHECK(m.memory == planned.memory(net.steps()[std::size_t(step_of(net, m.name))]));
    }
    // relu and flat lie where conv lies.
    CHECK(names == std::vector<std::string>{"input", "conv", "fc", "loss"});
    CHECK(row(p, "conv", Pass::forward).output == Shape{4, 4, 8, 8});
  }
}

TEST_CASE("recording starts and stops in the middle of a run") {
  Stream stream;
  Profiler p;
  const auto work = [&] { stream.run(Pass::forward, "work", [] {}); };
  work();
  p.start(stream);
  work(), p.next_step();
  work(), work(), p.next_step();
  work();  // of a step that stop() forgets
  p.stop();
  work();
  CHECK(stream.recorder() == nullptr);
  CHECK(p.steps() == 2);
  CHECK(p.cell(-1, Pass::forward).kernels.at(0).calls == 3);
  p.start(stream);
  work(), p.next_step();
  p.stop(), p.stop();
  CHECK(p.steps() == 3);
  CHECK(p.cell(-1, Pass::forward).kernels.at(0).calls == 4);
}

TEST_CASE("a profiler that goes leaves the stream to the recorder before it") {
  Stream stream;
  Profiler before;
  stream.record_to(&before);
  {
    Profiler p;
    p.start(stream);
    CHECK(stream.recorder() == &p);
  }
  CHECK(stream.recorder() == &before);
}

TEST_CASE("what was counted since the last span belongs to the next one") {
  Ticks ticks;
  Profiler p(16, 4, &ticks);
  for (int step = 0; step < 2; ++step) {
    p.begin_step();
    p.record({1, Pass::forward, Lane::compute, "conv", 0, 1, 0});
    ticks.reads += 10;
    p.record({2, Pass::forward, Lane::compute, "relu", 1, 2, 0});
    std::thread([&] {
      p.record({2, Pass::weight_grad, Lane::communication, "all_reduce", 1, 2, 0});
    }).join();
    p.record({2, Pass::forward, Lane::compute, "relu", 2, 3, 0});
    p.end_step();
  }
  REQUIRE(p.cell(1, Pass::forward).counts);
  CHECK(p.cell(1, Pass::forward).counts->cycles == 2);
  CHECK(p.cell(2, Pass::forward).counts->cycles == 2 * (11 + 1));
  CHECK(p.cell(2, Pass::forward).counts->instructions == 4 * (11 + 1));
  CHECK(p.cell(2, Pass::forward).counts->misses < 0);
  CHECK(!p.cell(2, Pass::weight_grad).counts);
}

TEST_CASE("a listener is told of every layer, forward, backward and update") {
  World world;
  Trainer trainer(small(), world, SGD{.rate = 0.1}, {.batch = 2, .backend = "reference"});
  const std::vector<float> images(2 * 3 * 64, 0.5f);
  const std::vector<std::int32_t> labels(2, 1);
  const Batch batch{
      .images = images.data(), .targets = labels.data(), .size = 2, .global_valid = 2};
  std::vector<std::string> heard;
  LayerCallback each([&](const LayerRun& run) {
    CHECK(run.end >= run.begin);
    CHECK(trainer.network().steps()[std::size_t(run.layer)].name == run.name);
    heard.push_back(text(name(run.phase), ' ', run.name));
  });
  trainer.stream().listen_with(&each);
  trainer.step(batch, 1, 1);
  trainer.stream().listen_with(nullptr);
  trainer.step(batch, 1, 1);
  CHECK(heard == std::vector<std::string>{"forward conv", "forward relu", "forward flat",
                                          "forward fc", "forward loss", "backward loss",
                                          "backward fc", "backward flat", "backward relu",
                                          "backward conv", "update conv"});
  CHECK((has_cuda() || cuda_ranges() == nullptr));
}
