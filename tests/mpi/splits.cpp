// Split layers over the processes of mpirun: the losses of one rank, under the built-in plans and
// under plans drawn at random; and the four networks of the slow tests under a few of those.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

std::vector<double> train(World& world, std::vector<Split> splits, bool fast, bool shard = false) {
  set_threads(1);
  const auto data = small_data();
  Network net = small_network(true);
  if (!splits.empty()) net.add<SoftmaxCrossEntropy>({}, "loss");
  Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9},
                  {.batch = 24,
                   .backend = fast ? "auto" : "reference",
                   .dtype = fast ? DType::f32 : DType::f64,
                   .splits = std::move(splits),
                   .bucket_mb = 0.01,
                   .first_bucket_mb = 0.001,
                   .shard_optimizer = shard});
  return losses(trainer, *data, 5, {.epochs = 10});
}

void same(const std::vector<double>& mine, const std::vector<double>& one, double tolerance) {
  REQUIRE(mine.size() == one.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    CHECK(std::abs(mine[i] - one[i]) <= tolerance * std::abs(one[i]));
}

Network with_loss() {
  Network net = small_network(true);
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

}  // namespace

TEST_CASE("processes under plans equal one rank") {
  const int ranks = world().size();
  World alone;
  for (const bool fast : {false, true}) {
    const auto one = train(alone, {}, fast);  // with which unlike instruction sets are settled
    const double tolerance = fast ? 1e-4 : 1e-9;
    const Network net = with_loss();
    for (const char* name : {"data", "owt", "spatial", "filter"}) {
      CAPTURE(name, fast);
      const auto decisions = decide(built_in_plan(name, net, 24, ranks), net, 24);
      same(train(world(), splits_of(decisions), fast), one, tolerance);
      same(train(world(), splits_of(decisions), fast, true), one, tolerance);
    }
    const Random random(5, 1);
    std::uint64_t draw = 0;
    for (int i = 0; i < 6; ++i) {
      CAPTURE(i, fast);
      same(train(world(), random_plan(net, ranks, 24, random, draw), fast), one, tolerance);
    }
  }
}

TEST_CASE("networks of processes under random plans equal one rank") {
  set_threads(1);
  const int ranks = world().size();
  for (const char* model : {"lenet", "alexnet", "resnet20", "vgg11"}) {
    const TrainerOptions options{.batch = 4, .backend = "reference", .dtype = DType::f64};
    std::vector<double> one;
    if (world().rank() == 0) one = five_losses(thin(model), World(), options);
    const Random random(7, key_of(model));
    std::uint64_t draw = 0;
    for (int i = 0; i < 3; ++i) {
      const Network net = thin(model);
      TrainerOptions split = options;
      split.splits = random_plan(net, ranks, options.batch, random, draw);
      INFO(model << '\n' << describe(net, split.splits));
      const auto losses = five_losses(thin(model), world(), split);
      if (world().rank() == 0) same(losses, one, 1e-8);
    }
  }
}
