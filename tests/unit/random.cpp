// Random: the published test vectors, random access, and distributions that are what they claim.
#include "catch.hpp"

#include <lamina/base/random.hpp>

#include <algorithm>
#include <set>
#include <vector>

using lamina::philox;
using lamina::Random;

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  // From kat_vectors of Random123.
  using Block = Random::Block;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE(
    "a random number depends on the seed, on each key and on the index, and on nothing else") {
  const Random random(1, 2, 3);
  CHECK(Random(1, 2, 3).bits(1000) == random.bits(1000));
  std::set<std::uint32_t> words;
  for (std::uint64_t i = 0; i < 1000; ++i) words.insert(random.bits(i));
  for (const auto& other : {Random(2, 2, 3), Random(1, 3, 3), Random(1, 2, 4), Random(2, 1, 3),
                            Random(1, 3, 2), Random(1, 2, 3ull << 32)}) {
    words.insert(other.bits(0));
  }
  words.insert(random.bits(1ull << 40));
  CHECK(words.size() == 1007);
  for (std::uint64_t i = 0; i < 8; ++i) CHECK(random.block(i / 4)[i % 4] == random.bits(i));
}

TEST_CASE("uniform and normal numbers have their moments and their range") {
  const Random random(7, 1);
  constexpr int count = 100000;
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, normal_cubes = 0, tail = 0;
  float least = 1, most = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float u = random.uniform(i), z = random.normal(i);
    least = std::min(least, u), most = std::max(most, u);
    sum += u, squares += u * u;
    normal_sum += z, normal_squares += z * z, normal_cubes += z * z * z;
    tail += std::abs(z) > 1.959964f;
  }
  CHECK(least >= 0);
  CHECK(most < 1);
  // Five standard errors each.
  CHECK(sum / count == Approx(0.5).margin(0.0046));
  CHECK(squares / count == Approx(1.0 / 3).margin(0.0048));
  CHECK(normal_sum / count == Approx(0).margin(0.016));
  CHECK(normal_squares / count == Approx(1).margin(0.023));
  CHECK(normal_cubes / count == Approx(0).margin(0.062));
  CHECK(tail / count == Approx(0.05).margin(0.0035));
  CHECK(Random::unit(~0u) < 1);
}

TEST_CASE("below(n) is below n and reaches every number alike") {
  const Random random(3, 4);
  std::vector<int> seen(7);
  for (std::uint64_t i = 0; i < 70000; ++i) ++seen.at(random.below(7, i));
  for (const int times : seen) CHECK(times == Approx(10000).margin(470));
  CHECK(random.below(1, 5) == 0);
}

TEST_CASE("permute makes a permutation that is the stream's, and every order is as likely") {
  std::vector<std::uint32_t> order(1000, 5), again(1000);
  lamina::permute<std::uint32_t>(order, Random(1, 2));
  lamina::permute<std::uint32_t>(again, Random(1, 2));
  CHECK(order == again);
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(again.begin(), again.end());
  for (std::uint32_t i = 0; i < 1000; ++i) REQUIRE(again[i] == i);

  std::vector<int> first(6);
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) {
    std::vector<std::int64_t> three(3);
    lamina::permute<std::int64_t>(three, Random(9, epoch));
    ++first.at(std::size_t(three[0] * 2 + (three[1] > three[2])));
  }
  for (const int times : first) CHECK(times == Approx(1000).margin(145));
}
