// Workers that are shared out unevenly: the best way to, and ranks that find it while they train.
#include "catch.hpp"
#include "support/training.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

double done(const Shares& shares, const std::vector<double>& speeds) {
  double last = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) last = std::max(last, shares[r] / speeds[r]);
  return last;
}

/// The least over all ways to share out so many workers.
double least(int workers, const std::vector<double>& speeds, Shares shares = {}) {
  if (shares.size() + 1 == speeds.size()) {
    shares.push_back(workers);
    return done(shares, speeds);
  }
  double best = 1e300;
  for (int n = 1; n <= workers - int(speeds.size() - shares.size()) + 1; ++n) {
    Shares more = shares;
    more.push_back(n);
    best = std::min(best, least(workers - n, speeds, more));
  }
  return best;
}

thread_local double nap = 0;  // seconds that this rank takes longer for each worker

/// y = x, late.
class Late final : public Layer {
 public:
  struct Options {};
  explicit Late(Options) {}
  std::string_view type() const override { return "Late"; }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Cost cost(std::span<const Shape>, const Split&, DType) const override { return {}; }
  Placement place(std::span<const Spec> xs, const Site&) const override {
    Placement p;
    p.output = p.inputs.emplace_back(Form{xs[0].shape, xs[0].dtype, {}});
    p.layer = std::make_unique<Placed>();
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context&, std::span<const View> xs, const View& y) override {
      std::this_thread::sleep_for(std::chrono::duration<double>(nap));
      copy_bytes(xs[0], y);
    }
    void backward(Context&, std::span<const View>, const View&, const View& dy,
                  std::span<const View> dxs) override {
      if (dxs[0]) copy_bytes(dy, dxs[0]);
    }
  };
};

Network network() {
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Late>();
  net.add<Conv2D>({.channels = 4, .kernel = 3}, "a");
  net.add<BatchNorm>({}, "norm");
  net.add<Linear>({.features = 4}, "b");
  return net;
}

}  // namespace

TEST_CASE("workers are shared out so that the last rank is done as early as can be") {
  const std::vector<std::vector<double>> all = {
      {1}, {1, 1}, {2, 1}, {1, 3}, {1, 1, 0.5}, {0.1, 5, 1, 1}, {1.0 / 3, 0.7, 0.9}};
  for (const auto& speeds : all)
    for (int workers = int(speeds.size()); workers <= 12; ++workers) {
      const Shares shares = apportion(workers, speeds);
      CHECK(std::accumulate(shares.begin(), shares.end(), 0) == workers);
      CHECK(*std::ranges::min_element(shares) >= 1);
      CHECK(done(shares, speeds) == Approx(least(workers, speeds)));
    }
  CHECK(apportion(12, std::vector<double>{2, 1}) == Shares{8, 4});
  CHECK(imbalance({6, 6}, std::vector<double>{1, 2}) == Approx(2 * 6 / 9.0));
  CHECK(imbalance({8, 4}, std::vector<double>{1, 2}) == Approx(1));
  CHECK_THROWS_WITH(apportion(1, std::vector<double>{1, 1}),
                    ContainsSubstring("a worker for each of 2"));
  CHECK_THROWS_WITH(apportion(2, std::vector<double>{1, 0}), ContainsSubstring("above 0"));
}

TEST_CASE("shares change when they gain, twice in a row") {
  Balance balance;
  const auto window = [&](std::vector<double> seconds) {
    for (int i = 0; i < 6; ++i) balance.add(seconds);
    return balance.due({6, 6});
  };
  CHECK(window({1, 1.02}).empty());
  CHECK(window({1, 2}).empty());
  CHECK(window({1, 1}).empty());  // it did not last
  CHECK(window({1, 2}).empty());
  CHECK(window({1, 2}) == Shares{8, 4});
  balance.restart();
  for (int i = 0; i < 6; ++i) CHECK(window({0, 1}).empty());  // not all are known
}

TEST_CASE("shares follow what comes and goes less and less often") {
  Balance balance;
  Shares now{6, 6};
  // Steps until shares change, where the rank that they favour is the slow one each time.
  const auto steps = [&] {
    for (int step = 1; step < 1000; ++step) {
      balance.add(now[0] >= now[1] ? std::vector<double>{2, 1} : std::vector<double>{1, 2});
      const Shares better = balance.due(now);
      if (better.empty()) continue;
      now = better, balance.restart();
      return step;
    }
    return 0;
  };
  for (const int expected : {12, 24, 48, 96, 192, 192}) CHECK(steps() == expected);
  // Windows without a gain make it quick again: of 96, 48, 24 and 12 steps.
  for (int step = 1; step <= 96 + 48 + 24 + 12; ++step) {
    balance.add(now[0] > now[1] ? std::vector<double>{1, 2} : std::vector<double>{2, 1});
    CHECK(balance.due(now).empty());
  }
  CHECK(steps() == 12);
  balance = {};
  CHECK(steps() == 12);
}

namespace {

TrainerOptions options(bool moves, int active = 0) {
  return {.batch = 24,
          .workers = 12,
          .active = active,
          .rebalance = moves,
          .backend = "reference",
          .dtype = DType::f64};
}

/// In f64: added up in another order, and otherwise the same.
void check_same(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-8).margin(1e-12));
}

}  // namespace

TEST_CASE("a rank that is slow gets fewer workers, and nothing is lost") {
  const auto data = small_data();
  std::vector<Resize> changes;
  Shares last;
  std::vector<std::vector<double>> weights_of(2);
  for (const bool moves : {false, true})
    run_ranks(2, [&](World& world) {
      set_threads(1);
      nap = !moves ? 0 : world.rank() == 1 ? 8e-3 : 4e-3;
      Trainer trainer(network(), world, SGD{.rate = 0.02}, options(moves));
      FitOptions fit{.steps = 24};
      fit.on_resize = [&](const Resize& r) {
        if (world.rank() == 0) changes.push_back(r);
      };
      for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
      trainer.network().average_kept(trainer.stream());
      if (world.rank() == 0)
        weights_of[moves] = weights(trainer.network()), last = trainer.workers();
    });
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].from == changes[0].to);
  CHECK(changes[0].workers == Shares{8, 4});
  CHECK(last == Shares{8, 4});
  CHECK(changes[0].imbalance > 1.2);
  CHECK(changes[0].expected < 1.1);
  check_same(weights_of[1], weights_of[0]);
}

TEST_CASE("workers move between resizes, and ranks come and go while they are about to") {
  const auto data = small_data();
  const std::int64_t first = GENERATE(10, 11, 12, 13);  // shares are looked at after step 12
  const bool fewer = GENERATE(false, true);
  CAPTURE(first, fewer);
  const std::int64_t steps = 72;
  std::vector<std::string> resized;
  int moves = 0;
  std::vector<double> found;
  run_ranks(3, [&](World& world) {
    set_threads(1);
    nap = world.rank() == 1 ? 4e-3 : 2e-3;
    Trainer trainer(network(), world, SGD{.rate = 0.02}, options(true, fewer ? 3 : 2));
    std::vector<std::pair<std::int64_t, int>> wanted = {{44, 2}, {40, 1}, {first, fewer ? 2 : 3}};
    FitOptions fit{.steps = steps};
    std::size_t asked = 0;
    fit.resize = [&] {
      if (wanted.empty() || trainer.progress().step < wanted.back().first) return 0;
      const int ranks = wanted.back().second;
      wanted.pop_back(), ++asked;
      return ranks;
    };
    fit.on_step = [&](const StepResult& r) {  // who is to join has time, whatever else runs here
      const bool soon = fewer && r.step < first + 4;  // so that getting ready outlasts a step
      const bool waits = world.rank() == 0 && resized.size() < asked && !soon;
      if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    fit.on_resize = [&](const Resize& r) {
      if (world.rank() != 0) return;
      if (r.from == r.to) ++moves;
      if (r.from != r.to) resized.push_back(text(r.from, " -> ", r.to));
    };
    for (const Epoch& epoch : trainer.fit(*data, fit)) (void)epoch;
    if (!trainer.active()) return;
    check(trainer.progress().step == steps, "step ", trainer.progress().step);
    trainer.network().average_kept(trainer.stream());
    if (world.rank() == 0) found = weights(trainer.network());
  });
  using Resizes = std::vector<std::string>;
  CHECK(resized ==
        (fewer ? Resizes{"3 -> 2", "2 -> 1", "1 -> 2"} : Resizes{"2 -> 3", "3 -> 1", "1 -> 2"}));
  CHECK(moves >= 1);
  World alone;
  nap = 0;
  Trainer trainer(network(), alone, SGD{.rate = 0.02}, options(false));
  for (const Epoch& epoch : trainer.fit(*data, {.steps = steps})) (void)epoch;
  trainer.network().average_kept(trainer.stream());
  check_same(found, weights(trainer.network()));
}

TEST_CASE("a change of ranks says where, why, and what it took") {
  Resize r{.step = 15, .from = 1, .to = 2, .prepared = 2.6, .pause = 7.7e-3, .bytes = 93806464};
  CHECK(r.text() ==
        "resize at step 15: 1 -> 2 ranks, pause 7.7 ms, 93.8 MB moved, prepared in 2.60 s");
  r.why = "lamina resize";
  CHECK(r.text().starts_with("resize at step 15: 1 -> 2 ranks (lamina resize), pause 7.7 ms, "));
  r.to = 1, r.workers = {6, 2}, r.imbalance = 1.512, r.expected = 1.02;
  CHECK(r.text() ==
        "balance at step 15: slowest over mean 1.51 -> 1.02, pause 7.7 ms, workers 6, 2");
  r.restart = true, r.why = "rank 2 was lost (signal 9)", r.to = 3, r.from = 4, r.pause = 0.61;
  CHECK(r.text() ==
        "restart at step 15: 4 -> 3 ranks (rank 2 was lost (signal 9)), pause 0.6 s, 93.8 MB read");
}

TEST_CASE("shares by proportion, and those that cannot be") {
  World world;
  const auto make = [&](TrainerOptions o) { Trainer(network(), world, SGD{}, o); };
  CHECK_THROWS_WITH(make({.batch = 24, .balance = {1}}), ContainsSubstring("expected workers"));
  CHECK_THROWS_WITH(make({.batch = 24, .workers = 4, .balance = {3, 1}}),
                    ContainsSubstring("a number for each of 1 ranks, got 2"));
  run_ranks(2, [&](World& w) {
    Trainer trainer(network(), w, SGD{}, {.batch = 24, .workers = 8, .balance = {3, 1}});
    check(trainer.workers() == Shares{6, 2}, "got ", in_words(trainer.workers()));
    trainer.rebalance({1, 7});
    check(trainer.workers() == Shares{1, 7}, "got ", in_words(trainer.workers()));
  });
}
