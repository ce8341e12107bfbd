// Tensors that share large pages: cleared, apart, and gone with their owners alone.
#include "catch.hpp"

#include <lamina/tensor/large_pages.hpp>
#include <lamina/tensor/memory_space.hpp>
#include <lamina/tensor/tensor.hpp>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace lamina;

namespace {

bool filled(const void* from, std::size_t bytes, unsigned char with) {
  const auto* at = static_cast<const unsigned char*>(from);
  return at[0] == with && std::memcmp(at, at + 1, bytes - 1) == 0;
}

}  // namespace

TEST_CASE("memory of any size is cleared, aligned, and nobody else's") {
  struct Part {
    std::shared_ptr<void> memory;
    std::size_t bytes;
    unsigned char with;
  };
  const auto on_thread = [](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Part> parts;
    bool well = true;
    for (int i = 1; i <= 300; ++i) {
      const std::size_t bytes = std::size_t(1) << random() % 22;  // to 2 MB, which are a page
      Part part{host_memory().allocate(bytes + random() % 100), bytes,
                (unsigned char)(i % 255 + 1)};
      well &= part.memory && std::uintptr_t(part.memory.get()) % 64 == 0;
      well &= filled(part.memory.get(), bytes, 0);
      std::memset(part.memory.get(), part.with, bytes);
      parts.push_back(std::move(part));
      if (parts.size() > 20) parts.erase(parts.begin() + random() % 20);
      for (const Part& p : parts) well &= filled(p.memory.get(), p.bytes, p.with);
    }
    return well;
  };
  bool well[3] = {};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) threads.emplace_back([&, t] { well[t] = on_thread(t); });
  for (std::thread& t : threads) t.join();
  CHECK((well[0] && well[1] && well[2]));
}

TEST_CASE("small tensors share large pages, which their last owner keeps") {
  constexpr std::size_t half = std::size_t(1) << 20;
  const auto follows = [](const std::shared_ptr<void>& a, const std::shared_ptr<void>& b) {
    return static_cast<char*>(b.get()) == static_cast<char*>(a.get()) + half;
  };
  auto before = LargePages::take(half), first = LargePages::take(half);
  for (int i = 0; i < 8 && follows(before, first); ++i)
    before = first, first = LargePages::take(half);
  REQUIRE_FALSE(follows(before, first));  // `first` begins pages, of which nobody else has any
  auto second = LargePages::take(half);
  REQUIRE(follows(first, second));
  std::memset(second.get(), 7, half);
  const std::weak_ptr<void> pages = first;
  first.reset();
  for (int i = 0; i < 8; ++i) (void)LargePages::take(half);
  CHECK(filled(second.get(), half, 7));
  CHECK_FALSE(pages.expired());
  second.reset();
  CHECK(pages.expired());
}

TEST_CASE("a tensor that does not fit says how much it needs", "[host]") {
  CHECK_THROWS_WITH(Tensor({1 << 20, 1 << 20, 1 << 10, 1}, DType::f32),
                    Catch::StartsWith("not enough memory for a tensor of 1048576x1048576x1024x1, "
                                      "which needs 4503599.63 GB"));
}
