// The memory plan: what lives at the same time never overlaps, and dead buffers are used again.
#include "catch.hpp"

#include <lamina/base/random.hpp>
#include <lamina/network/memory.hpp>

using namespace lamina;

TEST_CASE("buffers that live at the same time do not overlap") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Random random(seed, 0);
    std::vector<Lifetime> buffers;
    std::size_t sum = 0, peak = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const int first = int(random.below(50, 3 * i));
      buffers.push_back(
          {random.below(100000, 3 * i + 1), first, first + int(random.below(20, 3 * i + 2))});
      sum += buffers.back().bytes + 4096;
    }
    const std::size_t total = pack(buffers);
    for (std::size_t a = 0; a < buffers.size(); ++a) {
      CHECK(buffers[a].offset % 4096 == 0);
      CHECK(buffers[a].offset + buffers[a].bytes <= total);
      for (std::size_t b = 0; b < a; ++b)
        if (buffers[a].meets(buffers[b]) && buffers[a].bytes > 0 && buffers[b].bytes > 0)
          CHECK((buffers[a].offset + buffers[a].bytes <= buffers[b].offset ||
                 buffers[b].offset + buffers[b].bytes <= buffers[a].offset));
    }
    for (int time = 0; time < 70; ++time) {
      std::size_t live = 0;
      for (const auto& b : buffers) live += b.first <= time && time <= b.last ? b.bytes : 0;
      peak = std::max(peak, live);
    }
    CHECK(total >= peak);
    CHECK(total < sum);
  }
}

TEST_CASE("a chain of buffers of which two live at a time takes the room of two") {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({8192, i, i + 1});
  CHECK(pack(chain) == 2 * 8192);
}
