// The communication thread.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/comm/queue.hpp>
#include <lamina/comm/volume.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace lamina {

namespace detail {

/// The same number on all ranks of a group, and hardly ever that of another one.
inline std::uint64_t group_of(std::span<const int> members) {
  const auto* bytes = reinterpret_cast<const char*>(members.data());
  return members.empty() ? 0 : key_of({bytes, members.size_bytes()});
}

}  // namespace detail

struct CommQueue::Impl {
  explicit Impl(std::shared_ptr<Transport> world) : world_(std::move(world)) {
    thread_ = std::thread([this] {
      unbind_thread();
      loop();
    });
  }

  bool done(Ticket ticket) const noexcept {
    return completed_.load(std::memory_order_acquire) >= ticket;
  }

  void wait_quietly(Ticket ticket) noexcept {
    // What it waits for may need this very processor: so it does not hold on to it.
    for (const double limit = now() + 20e-6; now() < limit; std::this_thread::yield())
      if (done(ticket)) return;
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return done(ticket); });
  }

  void wait(Ticket ticket) {
    wait_quietly(ticket);
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (ticket >= failed_at_) std::rethrow_exception(error_);
  }

  Event put(Transport& group, const Operation& operation) {
    {
      const std::lock_guard lock(mutex_);
      check_startable();
    }
    Event done;
    note(attempt([&] { done = group.put(operation); }));
    check_health();
    return done;
  }

  void check_health() {
    if (!failed()) return;
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(error_);
  }

  void watch(std::shared_ptr<Transport> world) {
    const std::lock_guard lock(mutex_);
    world_ = std::move(world);
  }

  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  struct Job {
    std::shared_ptr<Transport> group;
    Operation operation;
    ComingSpan recorder = {};  ///< an error may end the recorder before the job
    Event done = {};           ///< of an operation that a device runs, which is only recorded here
    void (*invoke)(void*) = nullptr;
    void* work = nullptr;
  };
  static constexpr std::size_t capacity = 1024;  // more than the buckets of one step

  Ticket push(Job job) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return failed() || started_ - completed() < capacity; });
    check_startable();
    ring_[started_ % capacity] = std::move(job);
    const Ticket ticket = ++started_;
    lock.unlock();
    work_.notify_one();
    return ticket;
  }

  void loop() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto ready = [&] { return stopping_ || completed() < started_; };
      if (!work_.wait_for(lock, std::chrono::milliseconds(100), ready)) {
        lock.unlock();
        if (!failed()) note(attempt([&] { poll(); }));
        lock.lock();
        continue;
      }
      if (completed() == started_) return;
      const Ticket ticket = completed() + 1;
      Job& job = ring_[(ticket - 1) % capacity];
      if (!failed()) {
        lock.unlock();
        const std::exception_ptr error = attempt([&] { run(job); });
        job = Job();  // drops the group before anyone is told
        note(error);
        lock.lock();
      }
      job = Job();  // nobody waits for its span where another one has failed
      completed_.store(ticket, std::memory_order_release);
      finished_.notify_all();
    }
  }

  template <class F>
  static std::exception_ptr attempt(F&& f) noexcept {
    try {
      f();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void run(Job& job) {
    if (job.invoke) return job.invoke(job.work);
    const Operation& op = job.operation;
    job.done.queue ? await(op.after) : op.after.wait();
    double begin = now();
    if (job.done.queue)
      await(job.done);
    else if (op.space)
      run_staged(*job.group, op);
    else
      job.group->run(op);
    if (!job.recorder) return;
    double end = now();
    if (job.done.queue)
      if (const auto times = job.group->times(job.done)) std::tie(begin, end) = *times;
    const int size = job.group->size();
    Span span{
        op.layer, op.pass, Lane::communication, name(op.collective),
        begin,    end,     op.bytes(size),      op.bytes(size) * bus_factor(op.collective, size)};
    span.party = {detail::group_of(job.group->members()), job.group->rank(), op.to, op.from};
    job.recorder.record(span);
  }

  /// Memory of the host, which grows in the first steps only.
  struct Staging {
    void* of(MemorySpace& space, std::size_t size) {
      if (bytes < size) {
        memory = nullptr, bytes = 0;
        memory = space.staging(size), bytes = size;
      }
      return memory.get();
    }
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
  };

  /// What lies on a device passes through buffers on the host.
  void run_staged(Transport& group, Operation op) {
    const std::size_t in = op.bytes_in(group.size()), out = op.bytes_out(group.size());
    const bool in_place = op.in == op.out;
    void* const device_out = op.out;
    MemorySpace& space = *std::exchange(op.space, nullptr);
    op.after = {};  // has been waited for, and is for no other process to see
    void* const sent = sent_.of(space, in_place ? std::max(in, out) : in);
    space.copy(op.in, sent, in);
    op.in = sent;
    op.out = in_place ? sent : got_.of(space, out);
    group.run(op);
    space.copy(op.out, device_out, out);
  }

  void poll() {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Transport> world = world_;
    lock.unlock();
    world->poll();
  }

  /// Waits for what a device runs; looks after the peers meanwhile.
  void await(const Event& event) {
    for (double look = now() + 0.1; !event.past();) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (now() < look) continue;
      poll();
      look = now() + 0.1;
    }
  }

  /// Keeps the first error, if this is one, and ends what the world has put into streams.
  void note(const std::exception_ptr& error) {
    if (!error) return;
    std::unique_lock lock(mutex_);
    if (failed()) return;
    error_ = error;
    failed_at_ = completed() + 1;
    failed_.store(true, std::memory_order_release);
    const std::shared_ptr<Transport> world = world_;
    lock.unlock();
    world->give_up(error);
  }

  // These need the mutex, except that failed() may be read at any time.
  void check_startable() const {
    if (failed()) std::rethrow_exception(error_);
    check(!stopping_, "a collective was started after the end of its World");
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Ticket completed() const { return completed_.load(std::memory_order_relaxed); }

  std::shared_ptr<Transport> world_;
  std::vector<Job> ring_{capacity};
  std::mutex mutex_;
  std::condition_variable work_, finished_;
  Ticket started_ = 0, failed_at_ = 0;
  std::atomic<Ticket> completed_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  Staging sent_, got_;  // on the communication thread only
  bool stopping_ = false;
  std::thread thread_;
};

LAMINA_INLINE CommQueue::CommQueue(std::shared_ptr<Transport> world)
    : impl_(std::make_unique<Impl>(std::move(world))) {}
LAMINA_INLINE CommQueue::~CommQueue() { stop(); }

LAMINA_INLINE CommQueue::Ticket CommQueue::start(const std::shared_ptr<Transport>& group,
                                                 const Operation& operation, Recorder* recorder) {
  if (!recorder) return impl_->push({group, operation});
  // Waking the communication thread may cost the caller its processor.
  const double begin = now();
  const Ticket ticket = impl_->push({group, operation, recorder->coming()});
  // A device's kernels do not wait for it.
  if (!operation.space)
    recorder->record({operation.layer, operation.pass, Lane::wait, "post", begin, now()});
  return ticket;
}
LAMINA_INLINE void CommQueue::call(void (*invoke)(void*), void* work) {
  impl_->wait(impl_->push({nullptr, {}, {}, {}, invoke, work}));
}
LAMINA_INLINE Event CommQueue::put(const std::shared_ptr<Transport>& group,
                                   const Operation& operation, Recorder* recorder) {
  Operation timed = operation;
  timed.timed = recorder != nullptr;
  Event done = impl_->put(*group, timed);
  if (recorder) impl_->push({group, timed, recorder->coming(), done});
  return done;
}
LAMINA_INLINE void CommQueue::check_health() const { impl_->check_health(); }
LAMINA_INLINE void CommQueue::watch(std::shared_ptr<Transport> world) {
  impl_->watch(std::move(world));
}
LAMINA_INLINE bool CommQueue::done(Ticket ticket) const noexcept { return impl_->done(ticket); }
LAMINA_INLINE void CommQueue::wait_quietly(Ticket ticket) noexcept { impl_->wait_quietly(ticket); }
LAMINA_INLINE void CommQueue::wait(Ticket ticket) { impl_->wait(ticket); }
LAMINA_INLINE void CommQueue::stop() noexcept { impl_->stop(); }

}  // namespace lamina
