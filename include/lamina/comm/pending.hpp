// Pending: a collective that has been started. Keep it beside the buffer that it protects.
#pragma once

#include <lamina/comm/queue.hpp>

namespace lamina {

/// Move-only. A default one is finished. The destructor waits, and swallows the error, which the
/// next collective throws again.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  /// `event`: of one that a device runs, when it is done there. Then the ticket is that of looking
  /// after it, if it is recorded, or 0.
  Pending(std::shared_ptr<CommQueue> queue, CommQueue::Ticket ticket, const Operation& operation,
          Event event = {})
      : queue_(std::move(queue)),
        event_(std::move(event)),
        ticket_(ticket),
        layer_(operation.layer),
        pass_(operation.pass),
        collective_(operation.collective) {}
  ~Pending() { finish(); }
  Pending(Pending&&) = default;  // leaves the source finished
  Pending& operator=(Pending&& other) noexcept {
    finish();
    queue_ = std::move(other.queue_);
    event_ = std::move(other.event_);
    ticket_ = other.ticket_;
    layer_ = other.layer_;
    pass_ = other.pass_;
    collective_ = other.collective_;
    return *this;
  }

  bool done() const noexcept { return !queue_ || (event_.past() && queue_->done(ticket_)); }

  /// Waits for the result: of what a device runs, `stream` does, before what comes next on it; else
  /// the caller. (What lies on a device and goes by way of the host cannot be waited for there: a
  /// driver has one thread for all work of the host's, and copies may need it.) Records the wait if
  /// there was one, waking up included, under the layer and pass that started the collective.
  /// Throws what the collective threw.
  void wait(Stream& stream) {
    if (!queue_) return;
    Span span{layer_, pass_, Lane::wait, name(collective_), 0, 0, 0};
    if (event_.queue) return follow(stream, span);
    const auto queue = std::exchange(queue_, nullptr);
    if (queue->done(ticket_) || !stream.recorder()) return queue->wait(ticket_);
    span.begin = now();
    queue->wait(ticket_);
    span.end = now();
    stream.recorder()->record(span);
  }

 private:
  /// When the stream has come past it, the collective has been recorded, too. That is for the
  /// communication thread to see, and for no other work of the host's or a device's: what waits in
  /// the driver's one thread must not wait for what may be behind it there.
  void follow(Stream& stream, const Span& span) {
    queue_->check_health();
    stream.time(span, [&] { stream.follow(event_); });
    const auto queue = std::exchange(queue_, nullptr);
    event_ = {};
    if (ticket_ > 0) stream.then([queue, ticket = ticket_] { queue->wait(ticket); });
  }
  void finish() noexcept {
    if (!queue_) return;
    wait_for_event();
    queue_->wait_quietly(ticket_);
    queue_.reset();
  }
  void wait_for_event() noexcept {
    try {
      std::exchange(event_, {}).wait();
    } catch (...) {  // as said above
    }
  }

  std::shared_ptr<CommQueue> queue_;
  Event event_;  ///< of one that a device runs
  CommQueue::Ticket ticket_ = 0;
  std::int32_t layer_ = -1;
  Pass pass_ = Pass::forward;
  Collective collective_ = Collective::barrier;
};

}  // namespace lamina
