// Split layers over the processes of mpirun: the losses of one rank, under the built-in plans and
// under plans drawn at random.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/training.hpp"

#include <lamina/base/random.hpp>

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

/// Every layer's split, of the legal ones on so many ranks.
std::vector<Split> random_plan(const Network& net, int ranks, const Random& random,
                               std::uint64_t& draw) {
  std::vector<Split> plan(1, Split{.batch = ranks});
  for (std::size_t i = 1; i < net.graph().size(); ++i) {
    const auto& v = net.graph()[i];
    std::vector<Split> legal;
    for (int b = 1; b <= ranks; ++b)
      for (int k = 1; b * k <= ranks; ++k)
        for (int c = 1; b * k * c <= ranks; ++c)
          for (int h = 1; b * k * c * h <= ranks; ++h)
            if (const Split s{b, k, c, h, 1};
                why_illegal(*v.layer, net.input_shapes(v, 24), s, ranks).empty())
              legal.push_back(s);
    plan.push_back(legal[std::size_t(random.uniform(draw++) * double(legal.size()))]);
  }
  return plan;
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
    const auto one = train(alone, {}, fast);
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
      same(train(world(), random_plan(net, ranks, random, draw), fast), one, tolerance);
    }
  }
}
