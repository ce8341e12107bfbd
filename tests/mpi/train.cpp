// Training over the processes of mpirun: the same losses as one rank, the same bits on all ranks,
// and a resumed run that equals an uninterrupted one.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/training.hpp"

#include <cstdio>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Result {
  std::vector<double> losses, weights;
};

Result train(World& world, bool batch_norm, const std::string& backend, DType dtype) {
  set_threads(1);
  const auto data = small_data();
  Trainer trainer(small_network(batch_norm), world, SGD{.rate = 0.05, .momentum = 0.9},
                  {.batch = 24,
                   .backend = backend,
                   .dtype = dtype,
                   .bucket_mb = 0.01,
                   .first_bucket_mb = 0.001});
  auto l = losses(trainer, *data, 20, {.epochs = 10});
  return {std::move(l), weights(trainer.network())};
}

void same_on_all_ranks(const std::vector<double>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  for (const std::string& theirs : world().comm().all_gather_text(bytes)) CHECK(theirs == bytes);
}

}  // namespace

TEST_CASE("processes that share a batch equal one rank") {
  for (const bool batch_norm : {false, true})
    for (const bool fast : {false, true}) {
      CAPTURE(batch_norm, fast);
      const DType dtype = fast ? DType::f32 : DType::f64;
      const Result mine = train(world(), batch_norm, "auto", dtype);
      World alone;
      const Result one = train(alone, batch_norm, "auto", dtype);
      REQUIRE(mine.losses.size() == 20);
      for (std::size_t i = 0; i < 20; ++i)
        CHECK(std::abs(mine.losses[i] - one.losses[i]) <= (fast ? 1e-5 : 1e-11) * one.losses[i]);
      same_on_all_ranks(mine.weights);
    }
}

TEST_CASE("resuming over processes is bit-equal to never stopping") {
  set_threads(1);
  const std::string path =
      world().comm().broadcast_text(text("/tmp/lamina-mpi-", getpid(), ".safetensors"));
  const auto data = small_data();
  for (const bool local : {false, true}) {  // each rank's own running statistics
    CAPTURE(local);
    const Network net = local ? local_norm_network() : small_network(true);
    const auto make = [&] { return Trainer(net, world(), Adam{}, {.batch = 24}); };
    std::vector<double> whole, whole_weights, parts, parts_weights;
    {
      Trainer trainer = make();
      whole = losses(trainer, *data, 20, {.epochs = 10});
      whole_weights = weights(trainer.network());
    }
    {
      Trainer trainer = make();
      auto loader = trainer.loader(*data, true);
      for (int i = 0; i < 7; ++i) parts.push_back(trainer.step(loader, 20).loss);
      trainer.save(path);
    }
    {
      Trainer trainer = make();
      CHECK(trainer.resume(path).empty());
      for (const double loss : losses(trainer, *data, 20, {.epochs = 10})) parts.push_back(loss);
      parts_weights = weights(trainer.network());
    }
    CHECK(parts == whole);
    CHECK(parts_weights == whole_weights);
    if (!local) same_on_all_ranks(parts_weights);
    world().comm().barrier();
    if (world().rank() == 0) std::remove(path.c_str());
  }
}
