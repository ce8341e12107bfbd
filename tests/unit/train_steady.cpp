// The steady state of training allocates nothing. oneDNN makes a small argument list at each call
// of a primitive, which is out of the library's hands; nothing of the size of a tensor may be
// allocated.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

struct Count {
  std::size_t count = 1, largest = 1;
};

/// Allocations of all ranks in ten steps, after twenty others.
Count allocations_of_steps(int ranks, const std::string& backend) {
  const auto data = small_data();
  Count result;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net = small_network(true);
    Trainer trainer(net, world, Adam{},
                    {.batch = 16, .backend = backend, .bucket_mb = 0.001, .first_bucket_mb = 0});
    auto loader = trainer.loader(*data, true);
    for (int i = 0; i < 20; ++i) trainer.step(loader, 100);
    world.comm().barrier();
    std::unique_ptr<Allocations> allocations;
    if (world.rank() == 0) allocations = std::make_unique<Allocations>();
    world.comm().barrier();
    for (int i = 0; i < 10; ++i) trainer.step(loader, 100);
    world.comm().barrier();
    if (world.rank() == 0) result = {allocations->count(), allocations->largest()};
    world.comm().barrier();
  });
  return result;
}

}  // namespace

TEST_CASE("a step allocates nothing once training is under way") {
  if (!counts_allocations()) return;
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  CHECK(allocations_of_steps(ranks, "reference").count == 0);
  if (has_onednn()) CHECK(allocations_of_steps(ranks, "onednn").largest < 4096);
}
