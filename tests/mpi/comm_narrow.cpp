// Sums of f32 that go from node to node as bf16, between the processes of mpirun.
#include "catch.hpp"
#include "comm/mpi_combine.hpp"
#include "mpi/world.hpp"
#include "support/narrow_sums.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace lamina;
using namespace lamina::test;

TEST_CASE("sums between nodes are rounded where they travel") {
  const Communicator all = world().comm().narrow();
  if (!all.narrows()) return;  // one node: the next test
  const std::int64_t count = GENERATE(1, 2, 9, 700, 5000, 70001, 300000);
  CAPTURE(count);
  CHECK(wrong_when_narrow(all, count) == "");
}

TEST_CASE("sums within a node, and those of other numbers, are as they are") {
  const Communicator& usual = world().comm();
  const Communicator all = usual.narrow();
  Stream s;
  const auto same = [&]<class T>(T, ReduceOp reduce) {
    Tensor a = scattered_numbers<T>(all.rank(), 70001), b = scattered_numbers<T>(all.rank(), 70001);
    all.all_reduce(s, Pass::forward, a, reduce).wait(s);
    usual.all_reduce(s, Pass::forward, b, reduce).wait(s);
    std::int64_t unlike = 0;
    for (std::int64_t i = 0; i < 70001; ++i) unlike += a.as<T>()[i] != b.as<T>()[i];
    return unlike == 0;
  };
  CHECK(same(float(), ReduceOp::max));
  CHECK(same(double(), ReduceOp::sum));
  CHECK(same(float(), ReduceOp::sum) == !all.narrows());
}

TEST_CASE("f32 is rounded to bf16 as BF16 does it") {
  std::vector<float> from;
  for (std::uint32_t high = 0; high < 0x10000; high += 7)
    for (const std::uint32_t low : {0x0U, 0x1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      from.push_back(std::bit_cast<float>(high << 16 | low));
  from.insert(from.end(), {0, -0.0F, INFINITY, -INFINITY, std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::denorm_min(), NAN});
  std::vector<BF16> narrowed(from.size());
  std::vector<float> back(from.size()), sum(from.size(), 1.5F);
  detail::narrow(narrowed.data(), from.data(), from.size());
  detail::widen(back.data(), narrowed.data(), from.size());
  detail::add(sum.data(), narrowed.data(), from.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    BF16 should{double(from[i])};
    // What is too small for full precision is zero to what computes (flush_denormals()), but here
    // only bits are rounded.
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    if ((bits & 0x7F800000) == 0)
      should.bits = std::uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    if (std::isnan(from[i])) {
      wrong += !std::isnan(back[i]) || !std::isnan(sum[i]);
    } else {
      wrong += narrowed[i].bits != should.bits ||
               std::bit_cast<std::uint32_t>(back[i]) != std::uint32_t(should.bits) << 16;
      wrong += sum[i] != 1.5F + float(should);
    }
  }
  CHECK(wrong == 0);
}
