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

/// A fiber runs threads of a block until one waits; then another fiber goes on with those that have
/// not begun. So kernels whose threads never wait have one fiber. One block at a time has any. They
/// stay for the next one, and change places by jumps, which need no call of the system.
class Fibers {
 public:
  static Fibers& all() {
    static Fibers fibers;
    return fibers;
  }

  /// Runs body() for each of so many threads; enter(t) is called whenever thread t goes on.
  void run(unsigned count, std::function<void(unsigned)> enter, std::function<void()> body) {
    enter_ = std::move(enter), body_ = std::move(body), count_ = count, begun_ = 0;
    std::size_t used = 0;
    for (; begun_ < count_; ++used) {
      if (fibers_.size() == used) fibers_.push_back(std::make_unique<Fiber>());
      running_ = used;
      go_on(*fibers_[running_]);
    }
    for (bool waits = true, any = true; waits; waits = any) {
      waits = any = false;
      for (running_ = 0; running_ < used; ++running_) {
        Fiber& fiber = *fibers_[running_];
        waits |= fiber.waits_for != nullptr;
        if (fiber.may_go_on()) any = true, go_on(fiber);
      }
      if (!waits || any) continue;
      std::fputs("emulation: threads of a block wait for others that never come\n", stderr);
      std::abort();
    }
  }

  /// Lets others run until the counter is another.
  void wait_for(const unsigned& counter) {
    Fiber& fiber = *fibers_[running_];
    fiber.waits_for = &counter, fiber.since = counter;
    leave(fiber);
    fiber.waits_for = nullptr;
    enter_(fiber.thread);
  }

 private:
  struct Fiber {
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
    ucontext_t first;  ///< where it begins, once
    jmp_buf place;     ///< where it goes on
    bool begun = false;
    unsigned thread = 0;
    const unsigned* waits_for = nullptr;
    unsigned since = 0;

    bool may_go_on() const { return waits_for && *waits_for != since; }
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
  /// One thread after the other, of one block after the other.
  static void live() {
    Fibers& fibers = all();
    Fiber& me = *fibers.fibers_[fibers.running_];
    for (;; fibers.leave(me))
      while (fibers.begun_ < fibers.count_) {
        me.thread = fibers.begun_++;
        fibers.enter_(me.thread);
        fibers.body_();
      }
  }

  std::function<void(unsigned)> enter_;
  std::function<void()> body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  unsigned count_ = 0, begun_ = 0;  // threads of the block
  std::size_t running_ = 0;
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

/// Runs body() for each of so many threads of each block, one block after the other; enter(b, t) is
/// called whenever thread t of block b goes on.
template <class Enter, class Body>
void run_together(const std::vector<unsigned>& blocks, unsigned count, const Enter& enter,
                  const Body& body) {
  for (const unsigned b : blocks)
    Fibers::all().run(
        count, [&, b](unsigned t) { enter(b, t); }, body);
}

}  // namespace lamina::cuda::emulated
