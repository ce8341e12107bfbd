// Resizes that cannot be, which training hears of in a line: what a request asks for, and what a
// rank finds out when it is to join.
#include "catch.hpp"
#include "support/error_of.hpp"
#include "support/training.hpp"

#include <chrono>
#include <functional>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

thread_local std::int64_t channels = 3;  // that the guest's weight has along c, of three in all
thread_local std::size_t workspace = 0;  // bytes that it wants on this rank

/// y = x. Has a weight that may lie otherwise on one rank than on the others, and says that it has
/// a workspace.
class Guest final : public Layer {
 public:
  struct Options {};
  explicit Guest(Options) {}
  std::string_view type() const override { return "Guest"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape>, const Split&, DType) const override {
    return {.parameters = 3};
  }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    placed->w = {.name = "weight",
                 .dims = {3},
                 .form = {{1, channels, 3 / channels, 1}, xs[0].dtype, {}},
                 .replicas = site.along(Axis::batch)};
    Placement p;
    p.output = xs[0], p.inputs = {xs[0]}, p.workspace = workspace;
    p.layer = std::move(placed);
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context&, std::span<const View> xs, const View& y) override {
      copy_bytes(xs[0], y);
    }
    void backward(Context& context, std::span<const View>, const View&, const View& dy,
                  std::span<const View> dxs) override {
      space_of(w.grad).zero(w.grad.data, w.grad.bytes());
      w.reduce(context.stream);
      if (dxs[0]) copy_bytes(dy, dxs[0]);
    }
    std::vector<Parameter*> parameters() override { return {&w}; }
    Parameter w;
  };
};

/// With batch norm of which each worker has statistics of its own.
Network network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Guest>({}, "guest");
  net.add<Conv2D>({.channels = 6, .kernel = 3, .stride = 2}, "a");
  net.add<BatchNorm>({}, "norm");
  net.add<Linear>({.features = 4}, "b");
  return net;
}

struct Trained {
  std::vector<std::string> refused, resized;
  std::vector<double> weights;
};

/// Two ranks of three train, the third is asked for at step 3, and rank 0 alone at step 20.
Trained train(int workers, const std::function<void()>& spoil) {
  const auto data = small_data();
  Trained found;
  run_ranks(3, [&](World& world) {
    set_threads(1);
    channels = 3, workspace = 0;
    if (world.rank() == 2) spoil();
    Trainer trainer(network(), world, SGD{.rate = 0.02, .momentum = 0.9},
                    {.batch = 24, .workers = workers, .active = 2, .backend = "reference"});
    std::vector<std::pair<int, int>> wanted = {{20, 1}, {3, 3}};
    FitOptions fit{.steps = 40};
    fit.resize = [&] {
      if (wanted.empty() || trainer.progress().step < wanted.back().first) return 0;
      const int ranks = wanted.back().second;
      wanted.pop_back();
      return ranks;
    };
    fit.on_step = [](const StepResult&) {  // or it is over before anybody is ready
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    fit.on_refused = [&](const std::string& why) { found.refused.push_back(why); };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) found.resized.push_back(text(r.from, " -> ", r.to));
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    if (world.rank() == 0) found.weights = weights(trainer.network());
  });
  return found;
}

}  // namespace

TEST_CASE("a rank that has no memory for a network does not join, and training goes on", "[host]") {
  const int workers = GENERATE(4, 0);
  CAPTURE(workers);
  const Trained found = train(workers, [] { workspace = std::size_t(1) << 50; });
  REQUIRE(found.refused.size() == 1);
  CHECK_THAT(found.refused[0], ContainsSubstring("rank 2: expected 11258999") &&
                                   ContainsSubstring(" MB of free memory, got "));
  CHECK(found.resized == std::vector<std::string>{"2 -> 1"});
  const Trained fits = train(workers, [] {});
  CHECK(fits.refused.empty());
  CHECK(fits.resized == std::vector<std::string>{"2 -> 3", "3 -> 1"});
}

TEST_CASE("a rank whose parameters lie otherwise does not join ranks with workers") {
  const Trained found = train(4, [] { channels = 1; });
  REQUIRE(found.refused.size() == 1);
  CHECK_THAT(found.refused[0],
             ContainsSubstring("rank 2 keeps its parameters otherwise than rank 0"));
  CHECK(found.resized == std::vector<std::string>{"2 -> 1"});
  const Trained alike = train(4, [] {});
  CHECK(alike.resized == std::vector<std::string>{"2 -> 3", "3 -> 1"});
  REQUIRE(alike.weights.size() == found.weights.size());  // sums of 3 ranks round otherwise
  for (std::size_t i = 0; i < alike.weights.size(); ++i)
    CHECK(alike.weights[i] == Approx(found.weights[i]).epsilon(1e-4).margin(1e-6));
}

TEST_CASE("a resize whose splits are not legal is refused, and training goes on") {
  const auto data = small_data();
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Conv2D>({.channels = 8, .kernel = 3}, "a");
  net.add<Linear>({.features = 2}, "b");
  net.add<Linear>({.features = 4}, "c");
  const auto splits = [&](int ranks) {
    check(ranks != 4, "nobody knows how");
    std::vector<Split> all(net.graph().size(), Split{.batch = ranks});
    all[2] = {.channel = ranks};
    return all;
  };
  const std::vector<std::string> reasons = {
      "on 3 ranks: b (Linear): split channel:3: there are only 2 channels to be cut",
      "on 4 ranks: nobody knows how"};
  std::vector<std::string> refused, resized;
  run_ranks(4, [&](World& world) {
    Trainer trainer(net, world, SGD{.rate = 0.01},
                    {.batch = 24, .active = 2, .splits_for = splits, .splits = splits(2)});
    std::vector<std::string> found;
    for (int n = 1; n <= 4; ++n) found.push_back(trainer.why_not(n));
    check(found == std::vector<std::string>{"", "", reasons[0], reasons[1]}, in_words(found));
    if (trainer.active())
      check(error_of([&] { trainer.resize(3); }) == "resize: " + reasons[0], "not refused");
    std::vector<int> wanted = {1, 4, 3};  // the last one first
    FitOptions fit{.steps = 300};
    bool waits = false;  // or the training is over before all are ready
    fit.on_step = [&](const StepResult&) {
      if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    fit.resize = [&] {
      waits = wanted.empty() && trainer.ranks().size() == 2;
      if (wanted.empty() || trainer.progress().step < 9 - 2 * int(wanted.size())) return 0;
      const int next = wanted.back();
      wanted.pop_back();
      return next;
    };
    fit.on_refused = [&](const std::string& why) { refused.push_back(why); };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() == 0) resized.push_back(text(r.from, " -> ", r.to));
    };
    for (const Epoch& e : trainer.fit(*data, fit)) (void)e;
    check(world.rank() != 0 || trainer.progress().step == 300, "ended early");
  });
  CHECK(refused == reasons);
  CHECK(resized == std::vector<std::string>{"2 -> 1"});
}

TEST_CASE("a resize is refused where an evaluation could not be placed") {
  run_ranks(2, [&](World& world) {
    const Trainer trainer(network(), world, SGD{},
                          {.batch = 24, .active = 1, .evaluation_batch = 1});
    check(trainer.why_not(1).empty(), trainer.why_not(1));
    const std::string why = trainer.why_not(2);
    check(why.starts_with("on 2 ranks: evaluation batch: a global batch of 1 is smaller"), why);
  });
}

TEST_CASE("what resizes and workers object to is one line") {
  const auto data = small_data();
  run_ranks(2, [&](World& world) {
    Trainer trainer(network(), world, SGD{}, {.batch = 24, .workers = 4, .active = 1});
    const auto expect = [](const std::string& found, std::string_view part) {
      check(found.find(part) != found.npos, "expected '", part, "', got '", found, "'");
    };
    expect(trainer.why_not(0), "expected a rank or more, got 0");
    expect(trainer.why_not(3), "3 are more ranks than the 2 started");
    check(trainer.why_not(2).empty(), trainer.why_not(2));
    if (world.rank() == 1) {
      expect(error_of([&] { trainer.evaluate(*data); }), "this rank is parked");
      expect(error_of([&] { trainer.loader(*data, true); }), "this rank is parked");
      expect(error_of([&] { trainer.save("no"); }), "this rank is parked");
      return;
    }
    expect(error_of([&] { trainer.prepare(2); }), "this rank trains already");
    expect(error_of([&] { trainer.resize(3); }), "resize: 3 are more ranks");
    auto loader = trainer.loader(*data, true);
    trainer.start(loader, 9);
    expect(error_of([&] { trainer.resize(2); }), "resize: a step is under way");
    trainer.finish();
  });
}
