// Data parallelism: one, two, three and four ranks that share a global batch train the same
// network.
#include "catch.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Result {
  std::vector<double> losses, weights;
  Evaluation evaluation;
};

Result train(int ranks, bool batch_norm, const std::string& backend, DType dtype, double bucket_mb,
             std::int64_t batch = 24) {
  Result result;
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks));
  const auto data = small_data(), validation = small_data(50, false);
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(batch_norm), world,
                    SGD{.rate = 0.05, .momentum = 0.9, .weight_decay = 1e-3},
                    {.batch = batch,
                     .backend = backend,
                     .dtype = dtype,
                     .bucket_mb = bucket_mb,
                     .first_bucket_mb = bucket_mb / 4});
    const auto l = losses(trainer, *data, 20, {.epochs = 10});
    const Evaluation e = trainer.evaluate(*validation);
    all[std::size_t(world.rank())] = weights(trainer.network());
    if (world.rank() == 0) result = {l, weights(trainer.network()), e};
  });
  for (const auto& w : all) CHECK(w == all[0]);  // bit by bit
  return result;
}

void same(const Result& a, const Result& b, double tolerance) {
  REQUIRE(a.losses.size() == 20);
  REQUIRE(b.losses.size() == 20);
  for (std::size_t i = 0; i < 20; ++i)
    CHECK(std::abs(a.losses[i] - b.losses[i]) <= tolerance * std::abs(a.losses[i]));
  CHECK(a.evaluation.samples == 50);
  CHECK(b.evaluation.samples == 50);
  CHECK(std::abs(a.evaluation.loss - b.evaluation.loss) <= 10 * tolerance * a.evaluation.loss);
}

/// Says whether two threads have been at its images at once; the first ones wait for that a while.
class Shared final : public Dataset {
 public:
  explicit Shared(const Dataset& of) : Dataset("shared", of.classes(), of.transform()), of_(of) {}
  std::int64_t size() const override { return of_.size(); }
  void read(std::int64_t index, Sample& to) const override {
    {
      std::unique_lock lock(mutex_);
      if (++inside_ > 1) were_two_ = true, came_.notify_all();
      if (index < 3) came_.wait_for(lock, std::chrono::seconds(3), [&] { return were_two_; });
      --inside_;
    }
    of_.read(index, to);
  }
  bool were_two() const { return were_two_; }

 private:
  const Dataset& of_;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  mutable int inside_ = 0;
  mutable bool were_two_ = false;
};

}  // namespace

TEST_CASE("images of an evaluation are decoded by as many threads as those of training") {
  const auto data = small_data(), images = small_data(50, false);
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.05}, {.batch = 24});
  const Shared validation(*images), other(*images);
  for (const Epoch& epoch :
       trainer.fit(*data, {.steps = 4, .validation = &validation, .loader_threads = 2}))
    CHECK(epoch.validation->samples == 50);
  CHECK(validation.were_two());
  CHECK(trainer.evaluate(other, 2).samples == 50);
  CHECK(other.were_two());
}

TEST_CASE("ranks that share a batch equal one rank") {
  const bool batch_norm = GENERATE(false, true);
  const double bucket_mb = GENERATE(0.0, 0.004, 25.0);
  CAPTURE(batch_norm, bucket_mb);
  SECTION("f64, to rounding") {
    const Result one = train(1, batch_norm, "reference", DType::f64, bucket_mb);
    for (const int ranks : {2, 3, 4})
      same(one, train(ranks, batch_norm, "reference", DType::f64, bucket_mb), 1e-11);
  }
  SECTION("f32 on the fast back end, to 1e-5") {
    const Result one = train(1, batch_norm, "auto", DType::f32, bucket_mb);
    for (const int ranks : {2, 4})
      same(one, train(ranks, batch_norm, "auto", DType::f32, bucket_mb), 1e-5);
  }
}

TEST_CASE("a batch that the ranks cannot share evenly") {
  const Result one = train(1, false, "reference", DType::f64, 25, 10);
  same(one, train(4, false, "reference", DType::f64, 25, 10), 1e-11);  // 3 + 3 + 2 + 2
}

TEST_CASE("training learns") {
  const Result r = train(2, true, "auto", DType::f32, 25);
  CHECK(r.losses.back() < 0.8 * r.losses.front());
}

TEST_CASE("fewer samples than ranks train as one rank does where a plan cuts something else") {
  const auto spread = [](double a, double b) { return std::abs(a - b) / std::abs(b); };
  for (const std::int64_t batch : {1, 2}) {
    const TrainerOptions o{.batch = batch, .backend = "reference", .dtype = DType::f64};
    const auto one = five_losses(lenet(), World(), o);
    const Network net = lenet();
    const Random random(11, std::uint64_t(batch));
    std::uint64_t draw = 0;
    for (const int ranks : {3, 4}) {
      std::vector<std::vector<Split>> plans;
      for (const char* name : {"owt", "spatial", "filter"})
        plans.push_back(splits_of(decide(built_in_plan(name, net, batch, ranks), net, batch)));
      for (int i = 0; i < 4; ++i) plans.push_back(random_plan(net, ranks, batch, random, draw));
      for (const auto& plan : plans) {
        CAPTURE(batch, ranks, describe(net, plan));
        std::vector<double> losses;
        run_ranks(ranks, [&](World& world) {
          TrainerOptions split = o;
          split.splits = plan;
          auto got = five_losses(lenet(), world, split);
          if (world.rank() == 0) losses = std::move(got);
        });
        REQUIRE(losses.size() == one.size());
        for (std::size_t i = 0; i < one.size(); ++i) CHECK(spread(losses[i], one[i]) < 1e-9);
      }
    }
  }
}

TEST_CASE("fewer samples than ranks are refused where all is split by samples") {
  const auto data = small_data();
  CHECK_THROWS_WITH(run_ranks(3,
                              [&](World& world) {
                                Trainer trainer(small_network(false), world, SGD{}, {.batch = 2});
                              }),
                    ContainsSubstring("global batch of 2 is smaller than the 3 ranks"));
}

TEST_CASE("without communication the ranks drift apart") {
  const auto data = small_data();
  std::vector<std::vector<double>> all(2);
  run_ranks(2, [&](World& world) {
    Trainer trainer(small_network(false), world, SGD{.rate = 0.05},
                    {.batch = 24, .communicate = false});
    losses(trainer, *data, 3);
    all[std::size_t(world.rank())] = weights(trainer.network());
  });
  CHECK(all[0] != all[1]);
}
