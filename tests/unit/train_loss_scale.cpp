// Loss scaling: small gradients do not vanish in f16, an overflow on any rank makes all of them
// skip the update, and nothing else changes a bit.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <limits>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

thread_local View noise;  ///< of the layer that was placed last on this rank

/// y = x; dx = dy + noise, which is zero until somebody says otherwise.
class Noise final : public Layer {
 public:
  struct Options {};
  explicit Noise(Options) {}
  std::string_view type() const override { return "Noise"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double bytes = 2 * double(size_of(t)) * double(split.of_output(only(xs)).size());
    return {.forward = {0, bytes}, .input_grad = {0, 2 * bytes}};
  }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    placed->backend = &site.backend();
    placed->noise = Tensor({xs[0].shape, xs[0].dtype, {}}, site.backend().memory());
    noise = placed->noise;
    Placement p;
    p.inputs = {{xs[0].shape, xs[0].dtype, {}}};
    p.output = p.inputs[0];
    p.reads_x = false;
    p.layer = std::move(placed);
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context& context, std::span<const View> xs, const View& y) override {
      move(context, Pass::forward, xs[0], y, false);
    }
    void backward(Context& context, std::span<const View>, const View&, const View& dy,
                  std::span<const View> dxs) override {
      move(context, Pass::input_grad, dy, dxs[0], false);
      move(context, Pass::input_grad, noise, dxs[0], true);
    }
    void move(Context& context, Pass pass, const View& from, const View& to, bool add) const {
      const Box all = Box::of(to.shape);
      const BoxMove one{from, all, to, all, all, add};
      backend->move(context.stream, pass, "move", {&one, 1});
    }
    const Backend* backend = nullptr;
    Tensor noise;
  };
};

Network noisy_network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}, "a");
  net.add<ReLU>();
  net.add<Noise>({}, "noise");
  net.add<Dropout>({.rate = 0.25});
  net.add<Linear>({.features = 8}, "c");
  net.add<ReLU>();
  net.add<Linear>({.features = 4}, "d");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// From the next step on, gradients below this rank's noise are infinite, or as they were.
void overflow(Trainer& trainer, bool on) {
  std::vector<char> bytes(noise.bytes());
  const double infinity = on ? std::numeric_limits<double>::infinity() : 0;
  visit(noise.dtype, [&]<Floating T>(T) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i)
      reinterpret_cast<T*>(bytes.data())[i] = T(infinity);
  });
  put_bytes(trainer.stream(), bytes.data(), noise);
}

struct Case {
  std::string name;
  Optimizer optimizer;
  int ranks = 1;
  TrainerOptions options = {};
};

std::vector<Case> cases(DType dtype, LossScaling scaling) {
  std::vector<Case> all;
  const auto add = [&](std::string name, const Optimizer& optimizer, int ranks) {
    all.push_back({std::move(name), optimizer, ranks});
    TrainerOptions& o = all.back().options;
    o.batch = 12, o.backend = "reference", o.dtype = dtype, o.loss_scaling = scaling;
    o.bucket_mb = 0.001, o.first_bucket_mb = 0;
    return &o;
  };
  add("one rank", SGD{.rate = 0.05, .momentum = 0.9}, 1);
  add("AdamW, clipped", Optimizer(AdamW{}).clip_norm(0.1), 2);
  add("LARS", LARS{.rate = 0.5, .weight_decay = 0.01}, 2);
  add("LARS, sharded, clipped", Optimizer(LARS{.rate = 0.5}).clip_norm(0.1), 2)->shard_optimizer =
      true;
  add("micro-batches", SGD{.rate = 0.05, .weight_decay = 0.1}, 2)->micro_batch = 4;
  add("workers", Adam{}, 2)->workers = 4;
  add("split channels", SGD{.rate = 0.05}, 2)->splits =
      splits_of(noisy_network(), {.splits = {{"a", {.channel = 2}}, {"c", {.channel = 2}}}}, 2);
  return all;
}

struct State {
  std::vector<double> losses, weights;
  std::optional<LossScale> scale = {};
  bool operator==(const State&) const = default;
};

/// By rank; in the steps `overflows` the last rank's gradients are infinite.
std::vector<State> train(const Case& c, int steps, const std::vector<int>& overflows = {}) {
  std::vector<State> states(std::size_t(c.ranks));
  const auto data = small_data(48);
  run_ranks(c.ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(noisy_network(), world, c.optimizer, c.options);
    auto loader = trainer.loader(*data, true);
    State& state = states[std::size_t(world.rank())];
    for (int i = 0; i < steps; ++i) {
      const bool now = std::find(overflows.begin(), overflows.end(), i) != overflows.end();
      overflow(trainer, now && world.rank() == c.ranks - 1);
      const StepResult r = trainer.step(loader, steps);
      state.losses.push_back(r.loss), state.scale = r.loss_scale;
    }
    state.weights = weights(trainer.network());
  });
  return states;
}

}  // namespace

TEST_CASE("a loss scale changes no bit where nothing vanishes") {
  const auto plain = cases(DType::f32, {}), scaled = cases(DType::f32, {1024, 2});
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(plain[i].name);
    const auto want = train(plain[i], 5), got = train(scaled[i], 5);
    for (std::size_t r = 0; r < want.size(); ++r) {
      CHECK(got[r].losses == want[r].losses);
      CHECK(got[r].weights == want[r].weights);
      CHECK(!want[r].scale);
      CHECK(got[r].scale == LossScale{.scale = 4096, .good = 1});
    }
  }
}

TEST_CASE("where a gradient overflows on one rank, all ranks skip the update") {
  for (const DType dtype : {DType::f32, DType::f16})
    for (const Case& c : cases(dtype, {1024, 100})) {
      CAPTURE(c.name, name(dtype));
      const auto before = train(c, 2), skipped = train(c, 3, {2}), after = train(c, 5, {2});
      for (std::size_t r = 0; r < before.size(); ++r) {
        CHECK(skipped[r].weights == before[r].weights);
        CHECK(skipped[r].scale == LossScale{.scale = 512, .skipped = 1});
        CHECK(after[r].weights != before[r].weights);
        CHECK(after[r].scale == LossScale{.scale = 512, .good = 2, .skipped = 1});
        CHECK(std::isfinite(after[r].losses.back()));
      }
    }
}

namespace {

/// Classes of pixels by the sign of a number, told apart by weights so small that what goes back
/// through them is below what f16 can show. Returns the losses of some steps.
std::vector<double> told_apart(DType dtype, std::optional<LossScaling> scaling) {
  constexpr std::int64_t n = 4, side = 32, pixels = side * side;
  Network net({.c = 1, .h = side, .w = side});
  net.add<Conv2D>({.channels = 2, .kernel = 1, .bias = false}, "a");
  net.add<Conv2D>({.channels = 2, .kernel = 1, .bias = false}, "b");
  World world;
  Trainer trainer(net, world, SGD{.rate = 1e7},
                  {.batch = n,
                   .backend = "reference",
                   .dtype = dtype,
                   .frozen = {"b.*"},
                   .loss_scaling = scaling});
  for (const auto& p : trainer.network().parameters()) {
    if (p.name != "b.weight") continue;
    const Tensor plain(p.parameter->form.shape, DType::f32);
    for (int i = 0; i < 4; ++i) plain.as<float>()[i] = i % 3 == 0 ? 1e-4F : -1e-4F;
    trainer.network().set_value(*p.parameter, plain);
  }
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < n * pixels; ++i) {
    images.push_back(float(Random(3, 1).normal(std::uint64_t(i))));
    labels.push_back(images.back() > 0);
  }
  const Batch batch{
      .images = images.data(), .targets = labels.data(), .size = n, .global_valid = n};
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(trainer.step(batch, 20, 20).loss);
  return losses;
}

}  // namespace

TEST_CASE("gradients that would vanish in f16 train as in f32 with a loss scale") {
  const auto wide = told_apart(DType::f32, {}), scaled = told_apart(DType::f16, {});
  const auto vanished = told_apart(DType::f16, LossScaling());
  CHECK(wide.back() < 0.5 * wide.front());
  for (std::size_t i = 0; i < wide.size(); ++i) CHECK(scaled[i] == Approx(wide[i]).epsilon(0.01));
  CHECK(vanished.back() == Approx(vanished.front()).epsilon(1e-3));
}

TEST_CASE("a training with a loss scale resumes bit by bit") {
  const Folder folder;
  const auto data = small_data(48);
  for (const Case& c : cases(DType::f16, {1024, 3})) {
    CAPTURE(c.name);
    run_ranks(c.ranks, [&](World& world) {
      set_threads(1);
      const auto make = [&] { return Trainer(noisy_network(), world, c.optimizer, c.options); };
      const auto go_on = [&](Trainer& trainer, int steps) {
        auto loader = trainer.loader(*data, true);
        State s;
        for (int i = 0; i < steps; ++i) {
          overflow(trainer, trainer.progress().step == 1 && world.rank() == 0);
          const StepResult r = trainer.step(loader, 9);
          s.losses.push_back(r.loss), s.scale = r.loss_scale;
        }
        s.weights = weights(trainer.network());
        return s;
      };
      Trainer whole = make();
      go_on(whole, 4);
      whole.save(folder / "part");
      const State want = go_on(whole, 5);
      Trainer again = make();
      again.resume(folder / "part");
      check(go_on(again, 5) == want, c.name, ": resumed otherwise");
      // 2 good steps before the save, 5 behind it.
      check(want.scale == LossScale{.scale = 2048, .good = 1, .skipped = 1}, c.name, ": ",
            want.scale->text());
    });
  }
}

TEST_CASE("ranks that join go on with the loss scale of those that train") {
  const auto data = small_data(48);
  for (const int workers : {0, 4})
    run_ranks(2, [&](World& world) {
      set_threads(1);
      Trainer trainer(noisy_network(), world, SGD{.rate = 0.05},
                      {.batch = 12,
                       .workers = workers,
                       .active = 1,
                       .backend = "reference",
                       .dtype = DType::f16,
                       .loss_scaling = LossScaling{1024, 2}});
      StepResult last;
      const auto steps = [&](int count) {
        auto loader = trainer.loader(*data, true);
        for (int i = 0; i < count; ++i) last = trainer.step(loader, 10);
      };
      if (trainer.active()) steps(3);
      trainer.resize(2, 1);
      steps(3);
      check(last.loss_scale == LossScale{.scale = 8192}, "rank ", world.rank(), ": ",
            last.loss_scale->text());
    });
}

TEST_CASE("an overflow that never ends ends the training") {
  const Folder folder;
  const auto data = small_data(48);
  World world;
  const auto make = [&](LossScaling how) {
    return Trainer(noisy_network(), world, SGD{.rate = 0.05},
                   {.batch = 12, .backend = "reference", .dtype = DType::f16, .loss_scaling = how});
  };
  for (const LossScaling how : {LossScaling{4, 2000}, LossScaling{4, 0}}) {
    Trainer trainer = make(how);
    auto loader = trainer.loader(*data, true);
    trainer.step(loader, 100);
    trainer.save(folder / "before");
    const std::vector<double> before = weights(trainer.network());
    overflow(trainer, true);
    const int halvings = how.double_after > 0 ? 2 : 0;
    for (int i = 1; i < LossScaling::patience + halvings; ++i) trainer.step(loader, 100);
    CHECK_THROWS_WITH(trainer.step(loader, 100),
                      ContainsSubstring(text("gradients have overflowed in 50 steps in a row, with "
                                             "a loss scale of ",
                                             halvings ? 1 : 4)));
    Trainer again = make(how);
    again.resume(folder / "before");
    CHECK(weights(again.network()) == before);
  }
}

TEST_CASE("loss scales that cannot be are refused") {
  World world;
  const auto make = [&](LossScaling how) {
    Trainer(noisy_network(), world, SGD{},
            {.batch = 4, .backend = "reference", .dtype = DType::f16, .loss_scaling = how});
  };
  CHECK_NOTHROW(make({1, 1}));
  CHECK_THROWS_WITH(make({1000, 1}), ContainsSubstring("expected a power of two from 1 to"));
  CHECK_THROWS_WITH(make({0.5, 1}), ContainsSubstring("expected a power of two from 1 to"));
  CHECK_THROWS_WITH(make({2, -1}), ContainsSubstring("after which it doubles, got -1"));
}
