// The threads of a block as threads of the system: sanitizers see what is wrong with them.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

namespace lamina::cuda::emulated {

using Barrier = std::barrier<>;

/// Runs body() for each of so many threads of each block, those of a block at the same time;
/// enter(b, t) is called first on each.
template <class Enter, class Body>
void run_together(const std::vector<unsigned>& blocks, unsigned count, const Enter& enter,
                  const Body& body) {
  std::vector<std::thread> threads;
  Barrier block_ends(count);
  for (unsigned t = 0; t < count; ++t)
    threads.emplace_back([&, t] {
      for (const unsigned b : blocks) {
        enter(b, t);
        body();
        block_ends.arrive_and_wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lamina::cuda::emulated
