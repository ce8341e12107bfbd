// Random numbers without a state: each is a function of (seed, keys, index) alone, so a result
// never depends on the number of threads or ranks, nor on who asked first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace lamina {

/// A key for a name (FNV-1a).
inline std::uint64_t key_of(std::string_view name) {
  std::uint64_t h = 14695981039346656037ull;
  for (const char c : name) h = (h ^ std::uint8_t(c)) * 1099511628211ull;
  return h;
}

/// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
/// numbers: as easy as 1, 2, 3" (SC 2011): ten rounds of multiplication and exclusive or that turn
/// a counter and a key into four random words.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {std::uint32_t(b >> 32) ^ counter[1] ^ key[0], std::uint32_t(b),
               std::uint32_t(a >> 32) ^ counter[3] ^ key[1], std::uint32_t(a)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

/// A stream of random numbers with random access. Streams with different seeds or keys are
/// independent: `Random(seed, epoch, sample)`.
///
/// The stream is a sequence of 32-bit words, four to a block. `bits(i)` and `uniform(i)` use word
/// i; `normal(i)` and `below(n, i)` use words 2i and 2i+1. Take care not to use a word twice.
class Random {
 public:
  using Block = std::array<std::uint32_t, 4>;

  explicit constexpr Random(std::uint64_t seed, std::uint64_t key0 = 0, std::uint64_t key1 = 0)
      : key_(mix(mix(seed) + key0)), high_(key1) {}

  /// Words 4j to 4j+3: the quick way to many numbers.
  constexpr Block block(std::uint64_t j) const {
    return philox({low(j), high(j), low(high_), high(high_)}, {low(key_), high(key_)});
  }

  constexpr std::uint32_t bits(std::uint64_t i) const { return block(i / 4)[i % 4]; }

  /// In [0, 1), in steps of 2^-24.
  constexpr float uniform(std::uint64_t i) const { return unit(bits(i)); }

  /// Mean 0, variance 1 (Box and Muller).
  float normal(std::uint64_t i) const;

  /// An integer in [0, n); n > 0. The bias is under n / 2^64.
  constexpr std::uint64_t below(std::uint64_t n, std::uint64_t i) const {
    const auto [a, b] = pair(i);
    return (std::uint64_t{a} << 32 | b) % n;
  }

  /// The number in [0, 1) that `uniform` makes of a word.
  static constexpr float unit(std::uint32_t word) { return float(steps(word)) * 0x1p-24f; }
  /// The same in steps of 2^-24.
  static constexpr std::uint32_t steps(std::uint32_t word) { return word >> 8; }

 private:
  static constexpr std::uint32_t low(std::uint64_t x) { return std::uint32_t(x); }
  static constexpr std::uint32_t high(std::uint64_t x) { return std::uint32_t(x >> 32); }

  // The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014); a bijection.
  static constexpr std::uint64_t mix(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  }

  constexpr std::pair<std::uint32_t, std::uint32_t> pair(std::uint64_t i) const {
    const Block words = block(i / 2);
    return {words[i % 2 * 2], words[i % 2 * 2 + 1]};
  }

  std::uint64_t key_, high_;
};

/// Fills `order` with a random permutation of 0 ... size-1 (Fisher and Yates); it is the same for
/// the same stream, whatever `order` held.
template <class Index>
constexpr void permute(std::span<Index> order, const Random& random) {
  for (std::uint64_t i = 0; i < order.size(); ++i) order[i] = Index(i);
  for (std::uint64_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i, i)]);
  }
}

}  // namespace lamina
