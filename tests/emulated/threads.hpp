// The threads of a block as threads of the system: sanitizers see what is wrong with them.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

namespace lamina::cuda::emulated {

using Barrier = std::barrier<>;

/// Runs body(t) for each of so many threads at the same time; enter(t) is called first on each.
template <class Enter, class Body>
void run_together(unsigned count, const Enter& enter, const Body& body) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) threads.emplace_back([&, t] { enter(t), body(); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lamina::cuda::emulated
