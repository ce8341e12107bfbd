// CommQueue: the communication thread of a rank. Runs collectives one after the other, in the order
// in which they were started: with several groups, any other order can deadlock. Those that a
// device runs in a stream of its own it watches.
#pragma once

#include <lamina/comm/transport.hpp>

#include <cstdint>
#include <memory>

namespace lamina {

/// In comm/impl/queue.hpp: threads and locks are slow to include.
class CommQueue {
 public:
  /// Jobs are numbered from 1 in program order, so "done" is one comparison.
  using Ticket = std::uint64_t;

  /// `world` is polled for failed peers while the queue is idle.
  explicit CommQueue(std::shared_ptr<Transport> world);
  ~CommQueue();
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  /// Queues `operation`; blocks only while the ring is full. Allocates nothing. Records how long
  /// that took as waiting. Throws the error of the first job that failed, after which no job runs.
  Ticket start(const std::shared_ptr<Transport>& group, const Operation& operation,
               Recorder* recorder);

  /// Has the group put it into its stream (Transport::put), on this thread; returns the event at
  /// which it is past there. With a recorder it is also a job, which records it after that: see
  /// Recorder::await_all(). Throws as start() does.
  Event put(const std::shared_ptr<Transport>& group, const Operation& operation,
            Recorder* recorder);

  /// Throws what went wrong first, if anything has.
  void check_health() const;

  /// From now on this one is polled in the place of `world`.
  void watch(std::shared_ptr<Transport> world);

  /// Runs `work()` on the communication thread after all that was started before, and waits for it.
  template <class Work>
  void call(Work& work) {
    call([](void* w) { (*static_cast<Work*>(w))(); }, &work);
  }

  bool done(Ticket ticket) const noexcept;

  /// Waits until the job is done, well or not. Spins for about as long as a small message takes,
  /// then sleeps: the kernels' threads need the core.
  void wait_quietly(Ticket ticket) noexcept;

  /// Waits until the job is done; throws what it, or an earlier job, threw.
  void wait(Ticket ticket);

  /// Runs what is queued and ends the thread. Later jobs throw. Must not race with start().
  void stop() noexcept;

 private:
  struct Impl;
  void call(void (*invoke)(void*), void* work);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina
