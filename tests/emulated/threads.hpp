// The threads of a block as threads of the system: sanitizers see what is wrong with them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <latch>
#include <semaphore>
#include <thread>
#include <vector>

namespace lamina::cuda::emulated {

/// All in one place, where std::barrier goes by steps, each of which ThreadSanitizer looks at.
class Barrier {
 public:
  explicit Barrier(unsigned count) : count_(count), left_(count) {}

  void arrive_and_wait() {
    const unsigned turn = turn_.load(std::memory_order_relaxed);
    if (left_.fetch_sub(1) > 1) {
      turn_.wait(turn, std::memory_order_relaxed);
      turn_.load();  // what the others did before is seen behind this
    } else {
      left_.store(count_, std::memory_order_relaxed);
      turn_.store(turn + 1);
      turn_.notify_all();
    }
  }

 private:
  const unsigned count_;
  std::atomic<unsigned> left_, turn_ = 0;
};

/// Threads that stay from one kernel to the next: to begin and end one takes ThreadSanitizer longer
/// than most kernels take.
class Crew {
 public:
  using Work = std::function<void(unsigned thread)>;

  ~Crew() {
    work_ = nullptr;
    for (Member& member : members_) member.called.release();
    for (Member& member : members_) member.thread.join();
  }

  /// work(t) on each of the first `count` threads at the same time; returns when all have ended.
  void run(unsigned count, const Work& work) {
    std::latch ended(count);
    work_ = &work, ended_ = &ended;
    while (members_.size() < count) {
      Member& member = members_.emplace_back(unsigned(members_.size()));
      member.thread = std::thread([this, &member] { stay(member); });
    }
    for (unsigned t = 0; t < count; ++t) members_[t].called.release();
    ended.wait();
  }

 private:
  struct Member {
    explicit Member(unsigned number) : t(number) {}
    unsigned t;
    std::binary_semaphore called{0};
    std::thread thread;
  };

  void stay(Member& member) {
    for (;;) {
      member.called.acquire();
      if (!work_) return;
      (*work_)(member.t);
      ended_->count_down();
    }
  }

  std::deque<Member> members_;  // stay where they are
  const Work* work_ = nullptr;
  std::latch* ended_ = nullptr;
};

inline Crew& crew() {
  static Crew all;
  return all;
}

/// Runs body() for each of so many threads of each block, those of a block at the same time;
/// enter(b, t) is called first on each. One kernel at a time.
template <class Enter, class Body>
void run_together(const std::vector<unsigned>& blocks, unsigned count, const Enter& enter,
                  const Body& body) {
  Barrier block_ends(count);
  crew().run(count, [&](unsigned t) {
    for (const unsigned b : blocks) {
      enter(b, t);
      body();
      block_ends.arrive_and_wait();
    }
  });
}

}  // namespace lamina::cuda::emulated
