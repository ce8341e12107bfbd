// Layers of one's own that do not do what the network expects of them: an error names the
// parameter, where ranks would otherwise train on gradients of their own.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// y = x + b, elementwise over channels; starts the sum of b's gradient so many times.
class Shift final : public Layer {
 public:
  struct Options {
    int reduces = 1;
    bool forgets = false;              ///< to say which ranks hold the same bias
    std::string other = "other";       ///< parameter that is not trained
    bool apart = false;                ///< it becomes what each rank's samples say
    bool says_so = true;               ///< by `replicas`
    std::int64_t channels = 0;         ///< of y as placed, if not those of x
    DType wants = DType::f64;          ///< x in this type
    int inputs = 1;                    ///< it says how so many lie
    std::int64_t leaves_y = 0;         ///< elements, the first ones, that it does not write
    std::int64_t leaves_dx = 0;        ///< the last ones
    std::function<void()> first = {};  ///< what backward does before all else
    std::function<void()> last = {};   ///< and what it does when it goes
  };
  explicit Shift(Options o) : o_(o) {}
  std::string_view type() const override { return "Shift"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape> xs, const Split&, DType) const override {
    return {.parameters = double(only(xs).c)};
  }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    placed->reduces = o_.reduces, placed->first = o_.first;
    placed->last = o_.last;
    placed->leaves_y = o_.leaves_y, placed->leaves_dx = o_.leaves_dx;
    placed->b = {.name = "bias",
                 .dims = {xs[0].shape.c},
                 .form = {{1, xs[0].shape.c, 1, 1}, xs[0].dtype, {}},
                 .replicas = o_.forgets ? Communicator() : site.along(Axis::batch)};
    placed->other = placed->b;
    placed->other.name = o_.other, placed->other.trained = false;
    placed->apart = o_.apart;
    if (!o_.says_so) placed->other.replicas = Communicator();
    Placement p;
    p.output = Form{xs[0].shape, xs[0].dtype, {}};
    p.inputs.assign(std::size_t(o_.inputs), {xs[0].shape, o_.wants, {}});
    if (o_.channels > 0) p.output.shape.c = o_.channels;
    p.layer = std::move(placed);
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    ~Placed() override {
      if (last) last();
    }
    /// Calls work(c, i) for each element.
    static void each(const Shape& x, auto&& work) {
      for (std::int64_t i = 0; i < x.size(); ++i) work(std::size_t(i / (x.h * x.w) % x.c), i);
    }
    void forward(Context&, std::span<const View> xs, const View& y) override {
      each(y.shape, [&](std::size_t c, std::int64_t i) {
        if (i >= leaves_y) y.as<double>()[i] = xs[0].as<double>()[i] + b.value.as<double>()[c];
      });
      if (apart) other.value.as<double>()[0] = y.as<double>()[0];
    }
    void backward(Context& context, std::span<const View>, const View&, const View& dy,
                  std::span<const View> dxs) override {
      if (first) first();
      std::ranges::fill(b.grad.elements<double>(), 0.0);
      if (dy)  // something lies above
        each(dy.shape,
             [&](std::size_t c, std::int64_t i) { b.grad.as<double>()[c] += dy.as<double>()[i]; });
      for (int i = 0; i < reduces; ++i) b.reduce(context.stream);
      if (dy && dxs[0])
        std::copy_n(dy.as<double>(), dy.shape.size() - leaves_dx, dxs[0].as<double>());
    }
    std::vector<Parameter*> parameters() override { return {&b, &other}; }

    int reduces = 1;
    std::int64_t leaves_y = 0, leaves_dx = 0;
    bool apart = false;
    std::function<void()> first, last;
    Parameter b, other;
  };

  Options o_;
};

/// Its y says too little.
class Loss final : public Layer {
 public:
  struct Options {};
  explicit Loss(Options) {}
  std::string_view type() const override { return "Loss"; }
  bool is_loss() const override { return true; }
  Shape output(std::span<const Shape>) const override { return {1, 1, 1, 1}; }
  Cost cost(std::span<const Shape>, const Split&, DType) const override { return {}; }
  Placement place(std::span<const Spec> xs, const Site&) const override {
    struct Placed final : PlacedLayer {
      void forward(Context&, std::span<const View>, const View&) override {}
      void backward(Context&, std::span<const View>, const View&, const View&,
                    std::span<const View>) override {}
    };
    Placement p;
    p.inputs = {xs[0].form()}, p.output = {{1, 1, 1, 1}, DType::f64, {}};
    p.layer = std::make_unique<Placed>();
    return p;
  }
};

/// Weights after some steps, in a bucket that Shift's bias shares with others.
std::vector<double> train(int ranks, Shift::Options o, TrainerOptions how = {}) {
  const auto data = small_data();
  std::vector<double> found;
  how.batch = 24, how.backend = "reference", how.dtype = DType::f64;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net({.c = 3, .h = 12, .w = 12});
    net.add<Shift>(o, "shift");
    net.add<Conv2D>({.channels = 4, .kernel = 3}, "a");
    net.add<Linear>({.features = 4}, "b");
    Trainer trainer(net, world, SGD{.rate = 0.05}, how);
    for (const Epoch& epoch : trainer.fit(*data, {.steps = 3})) (void)epoch;
    if (world.rank() == 0) found = weights(trainer.network());
  });
  return found;
}

}  // namespace

TEST_CASE("a layer of one's own whose gradient is summed trains as on one rank", "[host]") {
  const std::vector<double> one = train(1, {});
  for (const auto& how : {TrainerOptions{}, {.micro_batch = 12}, {.workers = 4}}) {
    const std::vector<double> two = train(2, {}, how);
    REQUIRE(two.size() == one.size());
    CHECK(one[0] != 0);  // the bias has moved
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-9));
  }
}

TEST_CASE("what a layer of one's own does not write is found in the first step", "[host]") {
  const auto data = small_data();
  const auto train_above = [&](Shift::Options o, int micro_batch, bool recompute) {
    World world;
    Network net({.c = 3, .h = 12, .w = 12});
    net.add<Conv2D>({.channels = 2, .kernel = 3}, "a");
    net.add<Shift>(o, "shift");
    net.add<Linear>({.features = 4}, "b");
    TrainerOptions how{.batch = 24, .backend = "reference", .dtype = DType::f64};
    how.micro_batch = micro_batch, how.recompute.assign(net.graph().size(), recompute);
    Trainer trainer(net, world, SGD{.rate = 0.05}, how);
    for (const Epoch& epoch : trainer.fit(*data, {.steps = 3})) (void)epoch;
    return weights(trainer.network());
  };
  const std::vector<double> right = train_above({}, 0, false);
  for (const bool recompute : {false, true}) {
    CHECK(train_above({}, 0, recompute) == right);
    CHECK(
        error_of([&] { train_above({.leaves_y = 1}, 12, recompute); }) ==
        "shift (Shift): forward has left 1 of the 2400 elements of y as they were: expected it to "
        "write all of them");
    CHECK(error_of([&] { train_above({.leaves_dx = 7}, 0, recompute); }) ==
          "shift (Shift): backward has left 7 of the 4800 elements of dx as they were: expected it "
          "to write all of them");
  }
}

TEST_CASE("a layer of one's own that forgets who holds the same is refused", "[host]") {
  CHECK(error_of([] { train(2, {.forgets = true}); }) ==
        "shift.bias: 2 ranks have terms of its gradient, but its `replicas`, which add them up, "
        "are 1");
  CHECK(train(1, {.forgets = true}) == train(1, {}));
}

TEST_CASE("a layer of one's own whose gradient is not summed once ends the first step", "[host]") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const auto said = [&](Shift::Options o, TrainerOptions how = {}) {
    return error_of([&] { train(ranks, o, how); });
  };
  const std::string expected = "shift.bias: expected backward to call reduce() once, got ";
  CHECK(said({.reduces = 0}) == expected + "0 calls");
  CHECK(said({.reduces = 2}) == expected + "2 calls");
  CHECK(said({.reduces = 0}, {.workers = 4}) == expected + "0 calls");
  CHECK(said({.reduces = 0}, {.micro_batch = 12}) == expected + "0 calls");
}

TEST_CASE("a network that goes waits for its sums, which have the names of its layers", "[host]") {
  // Longer than what a string holds in itself: what frees it writes over it.
  const std::string name = "a name with more than sixteen letters";
  const bool assigned = GENERATE(false, true);  // another takes its place
  CAPTURE(assigned);
  std::atomic<bool> came = false, early = false;  // rank 1 to the sum; rank 0 went before that
  const std::string error = error_of([&] {
    run_ranks(2, [&](World& world) {
      set_threads(1);
      Network net({.c = 2});
      net.add<Shift>({.first = [&] { check(world.rank() != 0, "boom"); }}, "below");
      const auto late = [&] {
        if (world.rank() == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        came = true;
      };
      const auto goes = [&, rank = world.rank()] { early = early || (rank == 0 && !came); };
      net.add<Shift>({.first = late, .last = goes}, name);
      const auto place = [&] {
        return net.place({.batch = 4,
                          .backend = reference_backend(),
                          .ranks = world.comm(),
                          .dtype = DType::f64,
                          .bucket_mb = 0,
                          .first_bucket_mb = 0});
      };
      PlacedNetwork other = place(), placed = place();
      placed.initialize(1);
      Stream stream;
      Context context{.stream = stream};
      placed.forward(context);
      try {
        placed.backward(context);
      } catch (const Error&) {
        if (assigned) placed = std::move(other);
        throw;
      }
    });
  });
  CHECK(error == "boom");
  CHECK_FALSE(early);
}

TEST_CASE("what ranks keep apart of a layer of one's own, and do not say so, is refused") {
  const checkpoint_files::Folder folder;
  const auto save = [&](Shift::Options o) {
    return error_of([&] {
      run_ranks(2, [&](World& world) {
        set_threads(1);
        Network net({.c = 3, .h = 12, .w = 12});
        net.add<Shift>(o, "shift");
        net.add<Linear>({.features = 4}, "a");
        Trainer trainer(net, world, SGD{},
                        {.batch = 24, .backend = "reference", .dtype = DType::f64});
        losses(trainer, *small_data(), 1);
        trainer.save(folder / "file");
      });
    });
  };
  CHECK(save({.apart = true}).empty());
  CHECK(save({.says_so = false}).empty());
  const std::string wrong = save({.apart = true, .says_so = false});
  CHECK_THAT(wrong,
             ContainsSubstring("not saved: after step 1 shift.other has other values on rank 1 "));
  CHECK_THAT(wrong, ContainsSubstring("expected `replicas` where ranks have statistics of "));
}

TEST_CASE("what a layer of one's own says of itself is checked where it is placed") {
  const auto place = [](auto&& add) {
    Network net({.c = 2});
    add(net);
    return error_of(
        [&] { net.place({.batch = 2, .backend = reference_backend(), .dtype = DType::f64}); });
  };
  CHECK(place([](Network& net) { net.add<Shift>({.other = "bias"}, "shift"); }) ==
        "shift (Shift): two parameters are named 'bias': files could not tell them apart");
  const auto shift = [&](Shift::Options o) {
    return place([&](Network& net) { net.add<Shift>(o, "shift"); });
  };
  CHECK(shift({}) == "");
  CHECK(shift({.channels = 1}) ==
        "shift (Shift): place() makes y 2x1x1x1: expected 2x2x1x1, as output() and "
        "output_blocks() say");
  CHECK(shift({.channels = 4}).starts_with("shift (Shift): place() makes y 2x4x1x1: expected"));
  CHECK(shift({.wants = DType::f32}) ==
        "shift (Shift): place() wants input 0 in f32: expected f64, as it comes");
  CHECK(shift({.inputs = 2}) ==
        "shift (Shift): place() says how 2 inputs lie: expected all 1 or none");
  CHECK(place([](Network& net) {
          net.add<Loss>({}, "mine");
        }).starts_with("mine (Loss): its y is 1x1x1x1 f64"));
}

TEST_CASE("a network for inference runs no forward pass of a training") {
  Network net({.c = 2});
  net.add<BatchNorm>({}, "norm");
  PlacedNetwork placed = net.place({.batch = 2, .backend = reference_backend(), .training = false});
  placed.initialize(1);
  Stream stream;
  Context context{.stream = stream};
  CHECK(error_of([&] { placed.forward(context); }) ==
        "the network was placed for inference: expected Context::training = false");
  context.training = false;
  CHECK_NOTHROW(placed.forward(context));
}
