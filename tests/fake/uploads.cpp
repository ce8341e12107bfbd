// Batches that are uploaded beside the kernels, on the stand-in for CUDA's runtime.
#include "catch.hpp"
#include "cuda/memory.hpp"
#include "fake/runtime.hpp"
#include "support/training.hpp"

#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Trained {
  std::vector<double> losses, values;
  FakeCounts before, after;  ///< around the last ten steps
};

/// Steps that overlap, recorded when they can be; all that is put goes beside the kernels, or
/// nothing does.
Trained train(TrainerOptions options, const Dataset& data, bool beside) {
  options.batch = 12, options.backend = "reference";
  Trainer trainer(small_network(true), World(), SGD{.rate = 0.05, .momentum = 0.9}, options);
  auto& memory = dynamic_cast<cuda::Memory&>(trainer.network().placing().backend->memory());
  const std::size_t usual = memory.least_beside;
  memory.least_beside = beside ? 0 : std::numeric_limits<std::size_t>::max();
  auto loader = trainer.loader(data, true);
  Trained found;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      trainer.start(loader, 40);
      if (trainer.under_way() > 1) found.losses.push_back(trainer.finish().loss);
    }
  };
  run_ahead(false);
  steps(12);
  run_ahead(true);
  found.before = fake_counts();
  steps(10);
  found.after = fake_counts();
  found.losses.push_back(trainer.finish().loss);
  found.values = weights(trainer.network());
  memory.least_beside = usual;
  return found;
}

}  // namespace

TEST_CASE("steps whose batches come beside the kernels are those whose batches come before them") {
  const std::vector<TrainerOptions> all = {{},
                                           {.micro_batch = 4, .dtype = DType::bf16},
                                           {.dtype = DType::f16},
                                           {.dtype = DType::f64, .graph = false}};
  const auto bytes = small_data(48);  // which are beside the kernels always
  const Planes numbers(*bytes);
  for (const TrainerOptions& options : all) {
    CAPTURE(options.dtype.text());
    const Trained apart = train(options, numbers, false);
    const Trained beside = train(options, numbers, true);
    CHECK(apart.losses.size() == 22);
    CHECK(apart.losses == beside.losses);
    CHECK(apart.values == beside.values);
    CHECK(beside.after.allocations == beside.before.allocations);
    CHECK(beside.after.waits - beside.before.waits == 10);  // for losses
    const Trained of_bytes = train(options, *bytes, true);
    CHECK(of_bytes.losses == apart.losses);
    CHECK(of_bytes.values == apart.values);
    CHECK(of_bytes.after.allocations == of_bytes.before.allocations);
    CHECK(of_bytes.after.waits - of_bytes.before.waits == 10);
  }
}
