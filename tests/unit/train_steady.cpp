// The steady state of training allocates nothing. oneDNN makes a small argument list at each call
// of a primitive, which is out of the library's hands; nothing of the size of a tensor may be
// allocated.
#include "catch.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

Allocated allocated(int ranks, const std::string& backend, DType dtype = DType::f32,
                    int workers = 0) {
  const auto data = small_data();
  Allocated result{1, 1};
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(true), world, Adam{},
                    {.batch = 16,
                     .workers = workers,
                     .backend = backend,
                     .dtype = dtype,
                     .bucket_mb = 0.001,
                     .first_bucket_mb = 0});
    const Allocated all = allocated_by_steps(trainer, *data);
    if (world.rank() == 0) result = all;
  });
  return result;
}

}  // namespace

TEST_CASE("a step allocates nothing once training is under way") {
  if (!counts_allocations()) return;
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  CHECK(allocated(ranks, "reference").count == 0);
  CHECK(allocated(ranks, "reference", DType::bf16).count == 0);
  CHECK(allocated(ranks, "reference", DType::f32, 8).count == 0);
  for (const DType t : {DType::f32, DType::bf16})
    if (has_onednn()) CHECK(allocated(ranks, "onednn", t).largest < most_of_onednn());
}
