// The steady state of training allocates nothing on the library's side.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("a step allocates nothing once training is under way") {
  if (!counts_allocations()) return;
  const std::string backend = GENERATE("reference", "auto");
  CAPTURE(backend);
  World world;
  const auto data = small_data();
  Network net = small_network(true);
  Trainer trainer(net, world, SGD{.rate = 0.01, .momentum = 0.9},
                  {.batch = 16, .backend = backend});
  auto loader = trainer.loader(*data, true);
  for (int i = 0; i < 20; ++i) trainer.step(loader, 100);
  const Allocations allocations;
  for (int i = 0; i < 10; ++i) trainer.step(loader, 100);
  CHECK(allocations.count() == 0);
}

TEST_CASE("nor does it with two ranks that reduce their gradients") {
  if (!counts_allocations()) return;
  const auto data = small_data();
  std::size_t count = 1;
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Network net = small_network(true);
    Trainer trainer(net, world, Adam{}, {.batch = 16, .bucket_mb = 0.001, .first_bucket_mb = 0});
    auto loader = trainer.loader(*data, true);
    for (int i = 0; i < 20; ++i) trainer.step(loader, 100);
    world.comm().barrier();
    std::unique_ptr<Allocations> allocations;
    if (world.rank() == 0) allocations = std::make_unique<Allocations>();
    world.comm().barrier();
    for (int i = 0; i < 10; ++i) trainer.step(loader, 100);
    world.comm().barrier();
    if (world.rank() == 0) count = allocations->count();
    world.comm().barrier();
  });
  CHECK(count == 0);
}
