// The threads of a block as fibers of the calling thread, one after the other up to where each
// waits: for programs that run many kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace lamina::cuda::emulated {

/// Those of one block. One block at a time has any. They stay for the next one, and change places
/// by jumps, which need no call of the system.
class Fibers {
 public:
  static Fibers& all() {
    static Fibers fibers;
    return fibers;
  }

  /// Runs body() in each of so many; enter(t) is called whenever fiber t goes on.
  void run(unsigned count, std::function<void(unsigned)> enter, std::function<void()> body) {
    enter_ = std::move(enter), body_ = std::move(body);
    while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < count; ++t) fibers_[t]->done = false;
    for (unsigned left = count; left > 0;) {
      bool any = false;
      for (running_ = 0; running_ < count; ++running_) {
        Fiber& fiber = *fibers_[running_];
        if (fiber.done || (fiber.waits_for && *fiber.waits_for == fiber.since)) continue;
        any = true, fiber.waits_for = nullptr;
        enter_(running_);
        go_on(fiber);
        left -= fiber.done;
      }
      if (any) continue;
      std::fputs("emulation: threads of a block wait for others that never come\n", stderr);
      std::abort();
    }
  }

  /// Lets others run until the counter is another.
  void wait_for(const unsigned& counter) {
    Fiber& fiber = *fibers_[running_];
    fiber.waits_for = &counter, fiber.since = counter;
    leave(fiber);
  }

 private:
  struct Fiber {
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
    ucontext_t first;  ///< where it begins, once
    jmp_buf place;     ///< where it goes on
    bool begun = false, done = false;
    const unsigned* waits_for = nullptr;
    unsigned since = 0;
  };
  static constexpr std::size_t stack_bytes = std::size_t(64) << 10;

  void go_on(Fiber& fiber) {
    if (_setjmp(caller_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack.get(), fiber.first.uc_stack.ss_size = stack_bytes;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, live, 0);
    setcontext(&fiber.first);
  }
  void leave(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) _longjmp(caller_, 1);
  }
  /// One body after the other.
  static void live() {
    Fiber& me = *all().fibers_[all().running_];
    while (true) {
      all().body_();
      me.done = true;
      all().leave(me);
    }
  }

  std::function<void(unsigned)> enter_;
  std::function<void()> body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  unsigned running_ = 0;
  jmp_buf caller_;
};

class Barrier {
 public:
  explicit Barrier(std::ptrdiff_t count) : count_(count) {}
  void arrive_and_wait() {
    if (++arrived_ < count_) return Fibers::all().wait_for(passed_);
    arrived_ = 0, ++passed_;
  }

 private:
  std::ptrdiff_t count_, arrived_ = 0;
  unsigned passed_ = 0;
};

/// Runs body() for each of so many threads; enter(t) is called whenever thread t goes on.
template <class Enter, class Body>
void run_together(unsigned count, const Enter& enter, const Body& body) {
  Fibers::all().run(count, enter, body);
}

}  // namespace lamina::cuda::emulated
