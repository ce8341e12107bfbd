// What a GPU can do at most is measured as that of a processor.
#include "catch.hpp"
#include "machine/measure.hpp"

#include <lamina/kernels/backends.hpp>

using namespace lamina;

TEST_CASE("a GPU tells of its ceilings") {
  const auto backend = reference_backend();
  const CeilingLoops& loops = backend->ceilings();
  CHECK(loops.units() > 0);
  CHECK_FALSE(loops.shared());
  const World world;
  const detail::Effort effort{.loop = 1e-3, .memory = 1 << 20};

  const auto fma = detail::measure_fma(world, loops, effort);
  std::size_t sets = 0;
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
    sets += loops.instruction_sets(t).size();
  CHECK(fma.size() == sets);
  for (const ComputeCeiling& c : fma) CHECK(c.flops.together > 0);
  CHECK(loops.instruction_sets(DType::f32) == std::vector<std::string>{"fma"});
  CHECK_THROWS_WITH(loops.fma_rate("avx2", DType::f32, {}),
                    ContainsSubstring("does not multiply f32 by avx2"));

  const auto memory = detail::measure_memory(world, loops, 1 << 20, effort);
  REQUIRE(memory.size() == 2);
  CHECK(memory[0].level == "L2");
  CHECK(memory[0].capacity == double(loops.cache_levels()[0].bytes / std::size_t(loops.units()) *
                                     std::size_t(loops.units())));
  CHECK(memory[1].capacity == 0);
  for (const MemoryCeiling& m : memory) CHECK(m.bandwidth() > 0);
  CHECK(detail::measure_launch(world, *backend, effort) > 0);
}

TEST_CASE("GPUs multiply in the type of their operands") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    CHECK(reference_backend()->arithmetic(t) == t);
}
