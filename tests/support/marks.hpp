// Marks: how far a thread has come with its works, for those who wait for one of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace lamina::test {

/// Nobody wakes before the first mark that is waited for. All calls are made under one lock.
class Marks {
 public:
  std::uint64_t done() const { return done_; }
  /// One more.
  void add() {
    if (++done_ < awaited_) return;
    awaited_ = nobody;
    more_.notify_all();
  }
  void wait(std::unique_lock<std::mutex>& lock, std::uint64_t mark) {
    while (done_ < mark) {
      awaited_ = std::min(awaited_, mark);
      more_.wait(lock);
    }
  }
  /// For one more, and not for long.
  void wait_a_little(std::unique_lock<std::mutex>& lock) {
    awaited_ = std::min(awaited_, done_ + 1);
    more_.wait_for(lock, std::chrono::microseconds(50));
  }

 private:
  static constexpr auto nobody = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t done_ = 0, awaited_ = nobody;
  std::condition_variable more_;
};

}  // namespace lamina::test
